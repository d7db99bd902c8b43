/* One slot, its aggregator and N members that sum R rounds through it, over the worst network there is. PROTOCOL.md
 * sections 5 to 7 are the rules; check.py runs this file.
 *
 * The network remembers every packet that was ever sent, and may deliver any of them at any time, again and again or
 * never: loss, duplication, reordering and delay without limit. Nothing that progress needs may come from it alone:
 * for that, every member repeats its probe in time, and eventually one exchange passes undisturbed.
 *
 * A packet carries, besides what is on the wire, what it is really about: a contribution the round that its sender is
 * in, a result the round of which it is the sum (0: of none; wrong). Nobody but the assertions looks at that.
 *
 *   -DSWITCHML  the rule that netsum replaces: sets by an alternating bit, no generation (Sapio et al., NSDI'21)
 *   -DIN_ORDER  the network may delay and lose, but not reorder the packets between two nodes
 *   -DFORGETS   the aggregator does not keep a result once the next round is open: what must get stuck
 */
#ifndef N
#define N 3
#endif
#ifndef R
#define R 4
#endif
#define ALL ((1 << N) - 1)

#ifdef SWITCHML
#define LABEL(round) ((round) & 1) /* what a packet says of its round */
#define LABELS 2
#else
#define LABEL(round) (round)
#define LABELS (R + 1)
#endif

#define CONTRIBUTED(m, round) contributed[(m) * (R + 1) + (round)]
#define RESULT(m, label, truth) result[((m) * LABELS + (label)) * (R + 1) + (truth)]
#define HOLDS(bank, m) holds[(bank) * N + (m)]

/* The network. */
bool contributed[N * (R + 1)];
bool result[N * LABELS * (R + 1)];
#ifdef IN_ORDER
byte newest_in[N], newest_out[N]; /* rounds of the latest packet delivered from and to each member */
#define MAY_ENTER(m, r) ((r) >= newest_in[m])
#define MAY_LEAVE(m, about) ((about) >= newest_out[m])
#define ENTERS(m, r) newest_in[m] = r
#define LEAVES(m, about) newest_out[m] = about
#else
#define MAY_ENTER(m, r) true
#define MAY_LEAVE(m, about) true
#define ENTERS(m, r) skip
#define LEAVES(m, about) skip
#endif

/* The aggregator: two banks. `holds` is what really is in a bank's sum: the round of each member's contribution. */
byte current;
byte seen[2];
byte missing[2]; /* SwitchML: how many contributions */
bool complete[2];
byte holds[2 * N];
bool spoiled[2]; /* something was added twice */

/* The members: the round whose result each waits for; R + 1 at the end. */
byte round[N];

#define DONE(m) (round[m] > R)
byte done; /* members */

bool answered; /* the packet that came just now */

/* The round whose sum the bank holds, or 0. Leaves it in `truth`. */
inline find_truth(bank) {
  truth = HOLDS(bank, 0);
  for (i : 1 .. N - 1) {
    if
    :: HOLDS(bank, i) != truth -> truth = 0
    :: else
    fi
  }
  if
  :: spoiled[bank] -> truth = 0
  :: else
  fi
}

inline store(bank, m, r) {
  for (i : 0 .. N - 1) { HOLDS(bank, i) = 0 }
  spoiled[bank] = false;
  HOLDS(bank, m) = r
}

inline add(bank, m, r) {
  if
  :: HOLDS(bank, m) != 0 -> spoiled[bank] = true
  :: else -> HOLDS(bank, m) = r
  fi
}

inline send_result(m, bank, label) {
  find_truth(bank);
  RESULT(m, label, truth) = true;
  answered = true
}

inline send_to_all(bank, label) {
  find_truth(bank);
  for (i : 0 .. N - 1) { RESULT(i, label, truth) = true };
  answered = true
}

#ifdef SWITCHML
/* The packet says its set; the bitmap of the other set forgets its sender. */
inline on_contribution(m, r) {
  bank = (r) & 1;
  ENTERS(m, r);
  was = seen[bank];
  seen[bank] = seen[bank] | (1 << m);
  seen[1 - bank] = seen[1 - bank] & ~(1 << m);
  if
  :: (was & (1 << m)) == 0 ->
    if
    :: was == 0 -> store(bank, m, r)
    :: else -> add(bank, m, r)
    fi;
    if
    :: missing[bank] == 0 -> missing[bank] = N - 1
    :: else -> missing[bank] = missing[bank] - 1
    fi;
    if
    :: missing[bank] == 0 -> send_to_all(bank, LABEL(r))
    :: else
    fi
  :: else ->
    if
    :: missing[bank] == 0 -> send_result(m, bank, LABEL(r))
    :: else
    fi
  fi
}
#else
inline on_contribution(m, r) {
  bank = (r) & 1;
  if
  :: (r) == current + 1 -> /* opens the next round; honest members are never earlier than that */
    assert(current == 0 || complete[current & 1]);
    current = r;
    seen[bank] = 1 << m;
    complete[bank] = false;
    store(bank, m, r)
  :: (r) == current && (seen[bank] & (1 << m)) == 0 ->
    seen[bank] = seen[bank] | (1 << m);
    add(bank, m, r)
  :: (r) == current && (seen[bank] & (1 << m)) != 0 && complete[bank] -> send_result(m, bank, LABEL(r))
#ifndef FORGETS
  :: (r) + 1 == current && (seen[1 - bank] & (1 << m)) == 0 ->
    assert(complete[bank]);
    send_result(m, bank, LABEL(r))
#endif
  :: else -> assert((r) <= current) /* a duplicate, or stale */
  fi;
  if
  :: (r) == current && seen[bank] == ALL && !complete[bank] ->
    complete[bank] = true;
    send_to_all(bank, LABEL(r))
  :: else
  fi
}
#endif

/* A member looks at a result: is it what it waits for? Then it must be the sum of exactly that round. */
inline on_result(m, label, about) {
  LEAVES(m, about);
  if
  :: !DONE(m) && (label) == LABEL(round[m]) ->
    assert((about) == round[m]);
    round[m]++;
    if
    :: DONE(m) -> done++
    :: else -> CONTRIBUTED(m, round[m]) = true
    fi
  :: else
  fi
}

/* Whether the aggregator's STATUS tells a member that asks about its round to contribute (again). */
#ifdef SWITCHML
#define AGAIN(m) true
#else
#define AGAIN(m)                                                            \
  (round[m] == current + 1 ||                                               \
   (round[m] == current && (complete[current & 1] || (seen[current & 1] & (1 << m)) == 0)) || \
   (round[m] + 1 == current && (seen[current & 1] & (1 << m)) == 0))
#endif

/* The undisturbed exchange: PROBE, STATUS, contribution, and the answer to just that. */
proctype member(byte m) {
  byte bank, was, i, truth;
  do
  :: atomic {
      !DONE(m) ->
      if
      :: AGAIN(m) ->
        on_contribution(m, round[m]);
        if
        :: answered -> on_result(m, LABEL(round[m]), truth)
        :: else
        fi;
        bank = 0; was = 0; i = 0; truth = 0; answered = false
      :: else /* a straggler: ask again later */
      fi
    }
  :: DONE(m) -> break
  od
}

/* Any old copy. Of results only those that their addressee would look at. */
proctype network() {
  byte m, k, bank, was, i, truth;
  do
  :: atomic {
      done < N ->
      select(m : 0 .. N - 1);
      k = 1;
      do
      :: k <= R && CONTRIBUTED(m, k) && MAY_ENTER(m, k) -> break
      :: k <= R -> k++
      :: k > R -> break
      od;
      if
      :: k <= R -> on_contribution(m, k)
      :: else
      fi;
      m = 0; k = 0; bank = 0; was = 0; i = 0; truth = 0; answered = false
    }
  :: atomic {
      done < N ->
      select(m : 0 .. N - 1);
      k = 0;
      do
      :: DONE(m) -> k = R + 1; break
      :: !DONE(m) && k <= R && RESULT(m, LABEL(round[m]), k) && MAY_LEAVE(m, k) -> break
      :: !DONE(m) && k <= R -> k++
      :: !DONE(m) && k > R -> break
      od;
      if
      :: k <= R -> on_result(m, LABEL(round[m]), k)
      :: else
      fi;
      m = 0; k = 0
    }
  :: done == N -> break
  od
}

init {
  atomic {
    byte k;
    for (k : 0 .. N - 1) {
      round[k] = 1;
      CONTRIBUTED(k, 1) = true;
      run member(k)
    }
    run network()
  }
}

/* Progress: whatever the network does besides, everybody gets every result. */
ltl progress { <> (done == N) }
