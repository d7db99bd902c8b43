"""The rendezvous of a new process group: its ranks find each other and agree on a job.

The ranks exchange keys in the group's store. First, fresh_store() chooses an unused prefix of the store:

join/<rank>    a random word of the process; announces that the rank is present.
lead           JSON: rank 0's random word, and the words of the ranks that it has seen.
seen/<word of rank 0>/<rank>   the rank has read rank 0's word.

The other keys have rank 0's word as their prefix:

hello/<rank>   JSON: the settings that must be equal on all ranks and the rank's addresses, or why the rank cannot take
               part. Rank 0 adds the job's name and token, which are random for every group. "beside": the rank's number in
               the default group, if this is another group.
root           embedded shards: the address at which rank 0 listens, or why it does not. Not of a group that joins late.
error/<rank>   why the rank could not join the job, so that the other ranks can report it.
hosts/...      Gloo's keys.

When the group exists, every rank deletes the keys that it has written. If the group could not be created, the keys
remain, because no rank knows which of them the others have read.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import secrets
import threading
import time
import warnings

import torch.distributed as dist

from netsum.torch import _C, _addresses, _settings

_POLL_S = 0.005


def fresh_store(store, rank, size, timeout):
    """Returns a prefix of the store without keys of earlier groups. Waits for all ranks, at most `timeout`.

    torchrun --max-restarts gives restarted ranks the store of the ranks that died, which still contains their keys,
    such as addresses at which nobody listens any more. Therefore rank 0 chooses a new prefix, and every other rank
    accepts only a rank 0 that repeats the random word that the rank has just written.
    """
    own = secrets.token_hex(8)
    store.set(f"join/{rank}", own)
    deadline = time.monotonic() + timeout.total_seconds()
    word, words, missing = (own if rank == 0 else None), {"0": own}, set(range(1, size))
    while True:
        if rank == 0:
            here = [r for r in missing if store.check([f"join/{r}"])]
            found = {str(r): store.get(f"join/{r}").decode(errors="replace") for r in here}
            if not found.items() <= words.items():
                words |= found
                store.set("lead", json.dumps({"word": own, "ranks": words}))
        elif word is None and store.check(["lead"]):
            lead = _parse(store.get("lead"), word=str, ranks=dict)
            if lead and lead["ranks"].get(str(rank)) == own:
                word = lead["word"]
                store.set(f"seen/{word}/{rank}", "")
        if word is not None:
            missing -= {r for r in missing if store.check([f"seen/{word}/{r}"])}
            if not missing:
                return dist.PrefixStore(word, store)
        if time.monotonic() >= deadline:
            late = sorted(missing) if word is not None else [0]
            raise new_error(
                f"Timed out: waited {timeout.total_seconds():g} s for ranks {late} of {size} to make the process group",
                "timeout",
                late[0],
            )
        time.sleep(_POLL_S)


def _wait_for(store, keys, timeout):
    """Returns whether all keys are in the store within `timeout`. Unlike in the store's own wait(), signals interrupt it."""
    deadline = time.monotonic() + timeout.total_seconds()
    while not store.check(keys):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def interruptible(function, *args, **kwargs):
    """Calls a function that is not Python's, which may take long, such that signals interrupt the call.

    After KeyboardInterrupt, the function goes on in a thread of its own until it ends.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*args, **kwargs)
    outcome = concurrent.futures.Future()

    def run():
        try:
            outcome.set_result(function(*args, **kwargs))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True, name="netsum-connect").start()
    return outcome.result()


def meet(store, rank, size, group_name, timeout, rank_beside=None, further=False):
    """Waits for every rank, at most `timeout`, and returns the Agreement of all ranks, and the address of this one.

    `rank_beside`: the number of this rank in the default group, if the group joins its job late. `further`: it is not the default
    group.
    The agreement is None for a group that is too large for the network. Raises on every rank if any rank cannot take part.
    """
    settings, problem = None, None
    try:
        settings = _settings.from_environment(_environment(rank, size, rank_beside) if further else os.environ)
    except ValueError as error:
        problem = error
    hello = {"problem": str(problem)}
    if settings:
        hello = {"settings": settings.shared(), "host": _addresses.describe(store, settings.options.bind_address)}
    if settings and rank == 0:
        hello["job"] = f"{settings.job_prefix or 'torch'}-{group_name}-{secrets.token_hex(8)}"
        hello["token"] = secrets.token_hex(32)
    if settings and rank_beside is not None:
        hello["beside"] = rank_beside
    store.set(f"hello/{rank}", json.dumps(hello))
    if problem:
        raise problem
    hellos = _gather_hellos(store, size, timeout)
    _check_hellos(hellos)
    address = _choose_address([hello["host"] for hello in hellos], rank)
    most = _C.MAX_RANKS if settings.hierarchy else _C.MAX_MEMBERS
    if size > most:
        if rank == 0:
            more = "" if settings.hierarchy else f", and up to {_C.MAX_RANKS} below a hierarchy of aggregators"
            warnings.warn(
                f"netsum sums over at most {most} ranks in the network{more}; group {group_name} has {size}, so Gloo "
                "sums over the hosts instead",
                stacklevel=2,
            )
        return None, address
    ranks_beside = [hello.get("beside") for hello in hellos]
    return Agreement(settings, hellos[0]["job"], hellos[0]["token"], ranks_beside), address


_has_plan = False  # a group beside a default group that is not netsum's


def _environment(rank, size, rank_beside):
    """Of a group that is not the default one: the first one of the plan's size takes the plan, if the default one has not."""
    global _has_plan
    environ = _settings.without_plan(None if rank_beside is not None or _has_plan else size)
    if environ is not os.environ:
        if rank == 0:
            _warn_without_plan()
    elif environ.get("NETSUM_AGGREGATOR", "").strip().startswith("plan:"):
        _has_plan = True
    return environ


@functools.cache  # once
def _warn_without_plan():
    plan = os.environ["NETSUM_AGGREGATOR"]
    warnings.warn(f"netsum: the trees of {plan} are for one group; in others, the ranks' shards sum", stacklevel=2)


@dataclasses.dataclass(frozen=True)
class Agreement:
    settings: _C.Settings
    job: str
    token: str = dataclasses.field(repr=False)
    ranks_beside: list = dataclasses.field(default_factory=lambda: [None])  # of all ranks, in the default group

    @property
    def joins_late(self):
        """Whether the group joins its job when an operation pays for it: the same on all ranks."""
        return all(isinstance(rank, int) for rank in self.ranks_beside) and not self.settings.options.verifies


@contextlib.contextmanager
def sharing_errors(store, rank, size):
    """Wraps the creation of the group. A rank that fails tells the other ranks why, and adds their reasons."""
    try:
        yield
    except _C.Error as error:
        store.set(f"error/{rank}", json.dumps({"code": error.code, "message": str(error)}))
        if rank == 0:
            # Nobody waits for an address that will not come. Harmless if the address is there already: the others
            # read it before they get here.
            store.set("root", json.dumps({"problem": str(error)}))
        told = {r: text for r, (_, text) in _errors_told(store, size).items()}
        notes = "".join(f"\n  rank {r} reports: {text}" for r, text in told.items() if text != str(error))
        raise new_error(f"{error}{notes}", error.code, error.rank) from None


def _errors_told(store, size):
    """Returns {rank: (code, text)} of the ranks that have failed so far."""
    told = {}
    for rank in range(size):
        if store.check([f"error/{rank}"]):
            error = _read(store, f"error/{rank}", rank, {"code": str, "message": str})
            told[rank] = error["code"], error["message"]
    return told


def _choose_address(hosts, rank):
    """Returns this rank's address. Raises on every rank if one of them has none."""
    try:
        chosen = [_addresses.choose(hosts, r) for r in range(len(hosts))]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise new_error(
            "the store holds addresses that a netsum group of this version does not write: install the same version on every "
            "rank, and let no other program write to this store",
            "version_mismatch",
            None,
        ) from error
    if None in chosen:
        lost = chosen.index(None)
        raise new_error(
            f"rank {lost} has no address that the other hosts are known to reach: its host's name does not mean one, and no "
            f"network has an address of every host. Its interfaces: {_addresses.list_interfaces(hosts[lost])}. Set "
            "GLOO_SOCKET_IFNAME to the interface, or NETSUM_BIND_ADDRESS to the address, that leads to the other hosts",
            "unreachable",
            lost,
        )
    return chosen[rank]


def connect_hosts(store, rank, size, timeout, address=_addresses.LOOPBACK):
    """Creates the Gloo backend, which runs between the hosts what the network does not.

    It listens on the interfaces of GLOO_SOCKET_IFNAME, or else at `address`: what this host's name means may not be an
    address that the others reach.
    """
    named = os.environ.get("GLOO_SOCKET_IFNAME", "")
    hosts = dist.PrefixStore("hosts", store)
    try:
        if named:
            return interruptible(dist.ProcessGroupGloo, hosts, rank, size, timeout=timeout)
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timeout
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        return interruptible(dist.ProcessGroupGloo, hosts, rank, size, options)
    except RuntimeError as error:
        # A rank that fails after Gloo has connected it tells why, and then closes the connections of the others.
        for failed, (code, text) in _errors_told(store, size).items():
            raise new_error(f"rank {failed} cannot take part: {text}", code, failed) from error
        where = f"the interface {named} (GLOO_SOCKET_IFNAME)" if named else address
        raise new_error(
            f"Gloo cannot connect the hosts of the group: {error}. Rank {rank} uses {where}; set GLOO_SOCKET_IFNAME to the "
            "interface that leads to the other hosts",
            "unreachable",
            None,
        ) from error


def delete_keys(keys, hosts):
    """Deletes the keys with which the ranks created the group, when all of them have read these keys.

    After the second barrier no rank finds any of them, so a later group may use the same names.
    """
    if os.environ.get("TORCH_GLOO_LAZY_INIT", "").lower() in ("1", "t", "true", "y", "yes"):
        return  # Gloo will look for the addresses when it first needs them
    try:
        interruptible(hosts.barrier().wait)
        with contextlib.suppress(RuntimeError):  # a store that cannot delete keeps them
            keys.delete_own_keys()
        interruptible(hosts.barrier().wait)
    except RuntimeError as error:
        raise new_error(f"a rank was lost while the process group was made: {error}", "peer_lost", None) from error


def _parse(text, **types):
    """Returns the JSON object in `text`, or None if it is not an object with members of these names and types.

    Such text comes from another program or from another version of netsum.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return value if all(isinstance(value.get(name), kind) for name, kind in types.items()) else None


def _read(store, key, rank, otherwise):
    """Returns the object that `rank` has written: it has either a "problem" or the fields in `otherwise`."""
    text = store.get(key)
    value = _parse(text, problem=str) or _parse(text, **otherwise)
    if value is None:
        raise new_error(
            f'the store holds {text[:100]!r} under "{key}", which rank {rank} of a netsum group of this version does '
            "not write: install the same version on every rank, and let no other program write to this store",
            "version_mismatch",
            rank,
        )
    return value


def _gather_hellos(store, size, timeout):
    keys = [f"hello/{r}" for r in range(size)]
    if not _wait_for(store, keys, timeout):
        missing = [r for r, key in enumerate(keys) if not store.check([key])] or [0]
        raise new_error(
            f"Timed out: waited {timeout.total_seconds():g} s for ranks {missing} of {size} to make the process group",
            "timeout",
            missing[0],
        )
    of_any = {"settings": str, "host": dict}
    of_first = {**of_any, "job": str, "token": str}
    return [_read(store, key, r, of_any if r else of_first) for r, key in enumerate(keys)]


def _check_hellos(hellos):
    for r, hello in enumerate(hellos):
        if "problem" in hello:
            raise new_error(f"rank {r} cannot take part: {hello['problem']}", "invalid_argument", r)
        difference = _C.Settings.difference(hello["settings"], hellos[0]["settings"], f"on rank {r}")
        if difference:
            raise new_error(difference, "mismatch", r)


def communicator_options(agreement, store, rank, size, timeout, address=_addresses.LOOPBACK):
    """Returns this rank's CommunicatorOptions. `address`: of this rank.

    With embedded shards it waits until rank 0 listens, unless the group joins late. The caller must then join the job without first waiting for
    other ranks.
    """
    options = agreement.settings.options
    options.rank = rank
    options.world_size = size
    options.job = agreement.job
    options.token = agreement.token
    options.timeout = timeout
    if options.inject.loss > 0:
        warnings.warn(
            f"netsum: FAULTS ARE INJECTED (NETSUM_INJECT_LOSS): {options.inject.loss:.6%} of the packets received are "
            "dropped on purpose; not for production",
            stacklevel=2,
        )
    if agreement.settings.needs_root:
        options.bind_address = options.bind_address or address
        if agreement.joins_late:
            options.root = _with_port(options.bind_address, 0)  # of rank 0, which tells it later
        elif rank == 0:
            options.root = _with_port(options.bind_address, 0)
            options.on_root_bound = lambda address: store.set("root", json.dumps({"address": address}))
        else:
            options.root = _wait_for_root(store, options.connect_timeout, options.bind_address)
    return options


def _wait_for_root(store, connect_timeout, own_address):
    if not _wait_for(store, ["root"], connect_timeout):
        raise new_error(
            f"Timed out: waited {connect_timeout.total_seconds():g} s for rank 0 to publish its address", "timeout", 0
        )
    root = _read(store, "root", 0, {"address": str})
    if "problem" in root:
        raise new_error(f"rank 0 cannot take part: {root['problem']}", "unreachable", 0)
    is_loopback = _addresses.is_loopback
    if is_loopback(root["address"].rpartition(":")[0]) and not is_loopback(own_address):
        raise new_error(
            f"rank 0 listens at {root['address']}, which only its own machine can reach; set NETSUM_BIND_ADDRESS "
            "on rank 0's machine to an address that the others can reach, or MASTER_ADDR to one that is not in "
            "its /etc/hosts as 127.x",
            "unreachable",
            0,
        )
    return root["address"]


def _with_port(host, port):
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def new_error(message, code, rank):
    error = _C.Error(message)
    error.code = code
    error.rank = rank
    return error
