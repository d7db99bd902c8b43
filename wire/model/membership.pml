/* How a job comes, fails and comes again: epochs. Two members sum R rounds through one slot; workers and the aggregator
 * may crash and deadlines may pass at any time, FAILURES times in all. The control plane ends the job, tells everybody,
 * and when all have joined again grants the next epoch, with fresh slots. PROTOCOL.md section 8; check.py runs this file.
 *
 * The network remembers every packet of every epoch, and may deliver any of them at any time, again and again or never.
 * The rules within an epoch are those of slot.pml, here for two members; whose they are is what is checked here: no sum
 * holds a contribution of another epoch, no member takes a result of another epoch, and everybody gets through in the
 * end, however many had to start anew.
 *
 *   -DNO_EPOCH   packets say nothing of their epoch: what must go wrong
 *   -DOLD_SLOTS  the aggregator keeps the job's slots as they are from one epoch to the next: likewise
 */
#ifndef R
#define R 3
#endif
#ifndef FAILURES
#define FAILURES 2
#endif
#define N 2
#define EPOCHS (FAILURES + 1)

#ifdef NO_EPOCH
#define SAME_EPOCH(a, b) true
#else
#define SAME_EPOCH(a, b) ((a) == (b))
#endif

#define CONTRIBUTION(epoch, m, round) contribution[(((epoch) - 1) * N + (m)) * (R + 1) + (round)]
#define RESULT(epoch, m, round, truth) result[((((epoch) - 1) * N + (m)) * (R + 1) + (round)) * 2 + (truth)]

/* The network. `truth` of a result: it is the sum of that round of that epoch. */
bool contribution[EPOCHS * N * (R + 1)];
bool result[EPOCHS * N * (R + 1) * 2];

/* The aggregator: the epoch that is installed (0: none), and one slot with two banks. */
byte installed;
byte current;
byte seen[2];
bool complete[2];
byte in_epoch[2 * N]; /* of each member's contribution in the bank's sum */

/* The control plane. */
byte epoch;    /* latest granted */
bool running;  /* and not ended */
byte failures; /* so far */

/* The members. */
mtype = { joining, working, finished };
mtype state[N] = joining;
byte member_epoch[N];
byte round[N];

bool answered; /* the packet that came just now */

inline find_truth(bank) {
  truth = in_epoch[2 * (bank)] == installed && in_epoch[2 * (bank) + 1] == installed
}

inline on_contribution(e, m, r) {
  bank = (r) & 1;
  if
  :: installed == 0 || !SAME_EPOCH(e, installed) /* unknown_job, stale_epoch */
  :: else ->
    if
    :: (r) == current + 1 && (current == 0 || complete[current & 1]) ->
      current = r;
      seen[bank] = 1 << m;
      complete[bank] = false;
      in_epoch[2 * bank + m] = e
    :: (r) == current && (seen[bank] & (1 << m)) == 0 ->
      seen[bank] = seen[bank] | (1 << m);
      in_epoch[2 * bank + m] = e
    :: (r) == current && complete[bank] ->
      find_truth(bank);
      RESULT(installed, m, r, truth) = true;
      answered = true
    :: (r) + 1 == current && (seen[1 - bank] & (1 << m)) == 0 ->
      find_truth(bank);
      RESULT(installed, m, r, truth) = true;
      answered = true
    :: else
    fi;
    if
    :: (r) == current && seen[bank] == 3 && !complete[bank] ->
      complete[bank] = true;
      find_truth(bank);
      assert(truth); /* nothing of another epoch is in the sum */
      RESULT(installed, 0, r, truth) = true;
      RESULT(installed, 1, r, truth) = true;
      answered = true
    :: else
    fi
  fi
}

inline on_result(e, m, r, about) {
  if
  :: state[m] == working && SAME_EPOCH(e, member_epoch[m]) && round[m] == (r) ->
    assert((about) && (e) == member_epoch[m]);
    round[m]++;
    if
    :: round[m] > R -> state[m] = finished
    :: else -> CONTRIBUTION(member_epoch[m], m, round[m]) = true
    fi
  :: else
  fi
}

#define ALL_DONE (state[0] == finished && state[1] == finished)
#define FAILING (failures < FAILURES && running && !ALL_DONE)

/* A member: the undisturbed exchange with the aggregator, again and again; its crashes; its deadline. */
proctype member(byte m) {
  byte bank, e, r, truth;
  do
  :: atomic {
      state[m] == working ->
      e = member_epoch[m];
      r = round[m];
      on_contribution(e, m, r);
      if
      :: answered -> on_result(installed, m, r, truth)
      :: else
      fi;
      bank = 0; e = 0; r = 0; truth = 0; answered = false
    }
  :: atomic { /* crashes and starts anew, or gives up at its deadline: in both cases it leaves the job and joins again */
      state[m] == working && FAILING ->
      failures++;
      state[m] = joining;
      running = false
    }
  :: ALL_DONE -> break
  od
}

proctype control_plane() {
  byte k;
  do
  :: atomic { /* the job has failed: the aggregator forgets it, then or later; everybody is told, and joins again */
      !running && epoch > 0 && !ALL_DONE && (state[0] != joining || state[1] != joining) ->
      installed = 0;
      state[0] = joining;
      state[1] = joining
    }
  :: atomic { /* all have joined: the next epoch */
      state[0] == joining && state[1] == joining && !running ->
      epoch++;
      installed = epoch;
#ifndef OLD_SLOTS
      current = 0;
      for (k : 0 .. 1) { seen[k] = 0; complete[k] = false }
      for (k : 0 .. 2 * N - 1) { in_epoch[k] = 0 }
      k = 0;
#endif
      running = true;
      for (k : 0 .. N - 1) {
        state[k] = working;
        member_epoch[k] = epoch;
        round[k] = 1;
        CONTRIBUTION(epoch, k, 1) = true
      }
      k = 0
    }
  :: atomic { /* the aggregator crashes and comes back, knowing nothing; its control connection tells */
      FAILING ->
      failures++;
      installed = 0;
      current = 0;
      for (k : 0 .. 1) { seen[k] = 0; complete[k] = false }
      k = 0;
      running = false
    }
  :: ALL_DONE -> break
  od
}

/* Any old copy of any epoch. */
proctype network() {
  byte e, m, k, bank, truth;
  do
  :: atomic {
      !ALL_DONE ->
      select(e : 1 .. EPOCHS);
      select(m : 0 .. N - 1);
      k = 1;
      do
      :: k <= R && CONTRIBUTION(e, m, k) -> break
      :: k <= R -> k++
      :: k > R -> break
      od;
      if
      :: k <= R -> on_contribution(e, m, k)
      :: else
      fi;
      e = 0; m = 0; k = 0; bank = 0; truth = 0; answered = false
    }
  :: atomic { /* of results only those of the round that their addressee is in */
      !ALL_DONE ->
      select(e : 1 .. EPOCHS);
      select(m : 0 .. N - 1);
      if
      :: state[m] == working && RESULT(e, m, round[m], 0) -> on_result(e, m, round[m], 0)
      :: state[m] == working && RESULT(e, m, round[m], 1) -> on_result(e, m, round[m], 1)
      :: else
      fi;
      e = 0; m = 0
    }
  :: ALL_DONE -> break
  od
}

init {
  atomic {
    run member(0);
    run member(1);
    run control_plane();
    run network()
  }
}

/* Progress: failures come to an end, and then everybody gets through. */
ltl progress { <> ALL_DONE }
