"""Programs of MPI that do not know of netsum, run by mpirun with the component of Open MPI."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest
from harness import NETSUM, CommandTest
from mpi_harness import COMPONENT, LIMIT_S, calls, mpirun, need_open_mpi
from rack_harness import RackCommandTest

PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "mpi"
# Of `all_reduce short`: sums of float, int and long of 8 sizes, 7 of each, another sum, two barriers, three other operators and
# a reduction; a non-blocking sum before the communicator has joined, three other types, MAXLOC and an operator of the program.
TAKEN, PASSED = 63, 6


@pytest.fixture(scope="module")
def programs():
    """A folder with the compiled programs."""
    need_open_mpi("mpicc")
    with tempfile.TemporaryDirectory() as folder:
        includes = [f"-I{PROGRAMS.parents[1]}", f"-I{PROGRAMS.parents[1]}/include"]
        for name in ("all_reduce", "movement", "reductions", "faults", "waiting"):
            options = ["-O1", "-pthread", "-rdynamic", *includes]
            compile_with("mpicc", *options, PROGRAMS / f"{name}.c", "-o", f"{folder}/{name}")
        yield pathlib.Path(folder)


def compile_with(*command):
    subprocess.run([str(part) for part in command], check=True, timeout=LIMIT_S)


class TestMpi(CommandTest):
    @pytest.mark.parametrize("ranks", [2, 8])
    def test_sums_on_one_host(self, programs, ranks):
        run = mpirun(ranks, programs / "all_reduce", *(["short"] if ranks == 8 else []))
        assert run.returncode == 0, run.stderr
        assert "0 wrong" in run.stdout, run.stdout + run.stderr
        assert f"netsum: MPI_COMM_WORLD ({ranks} ranks) uses netsum: " in run.stderr
        assert "shared memory" in run.stderr
        taken, passed = calls(run)
        assert taken >= TAKEN, run.stderr
        assert ranks != 8 or (taken, passed) == (TAKEN, PASSED), run.stderr
        # Who asks is told what is not summed in the network, and why, once.
        assert len(re.findall("MPI_Allreduce is left to Open MPI: the network reduces float32", run.stderr)) == 1

    def test_sums_in_the_network(self, programs):
        daemon = self.start_aggregator()
        run = mpirun(4, programs / "all_reduce", NETSUM_AGGREGATOR=daemon.address, NETSUM_SHARED_MEMORY="0")
        assert run.returncode == 0, run.stderr
        assert "0 wrong" in run.stdout, run.stdout + run.stderr
        assert f"uses netsum: summed in the network by 1 aggregator ({daemon.address}" in run.stderr, run.stderr
        assert calls(run)[0] >= TAKEN
        daemon.wait_for("job ended", "job=mpi-")

    @pytest.mark.parametrize("program", ["movement", "reductions"])
    @pytest.mark.parametrize("where", ["one host", "network"])
    def test_other_collectives(self, programs, program, where):
        """Bytes of any type, with and without gaps, and reductions for one rank and in parts: all of them by netsum."""
        env = {}
        if where == "network":
            env = {"NETSUM_AGGREGATOR": self.start_aggregator().address, "NETSUM_SHARED_MEMORY": "0"}
        run = mpirun(4, programs / program, **env)
        assert run.returncode == 0, run.stdout + run.stderr
        assert "0 wrong" in run.stdout, run.stdout + run.stderr
        taken, passed = calls(run)
        assert taken >= 80, run.stderr
        assert passed == 0, run.stderr

    def test_modules_below_that_call_other_collectives(self, programs):
        """The component "basic" gathers and broadcasts for an all-gather, with which the communicator joins."""
        run = mpirun(2, programs / "movement", "short", flags=("--mca", "coll", "netsum,basic,libnbc,self"))
        assert run.returncode == 0, run.stdout + run.stderr
        assert "0 wrong" in run.stdout, run.stdout + run.stderr
        assert calls(run)[0] >= 80

    def test_non_blocking_from_the_first_call(self, programs):
        run = mpirun(2, programs / "all_reduce", "short", flags=("--mca", "coll_netsum_join_at_creation", "1"))
        assert run.returncode == 0 and "0 wrong" in run.stdout, run.stderr
        assert "MPI_Iallreduce is left to Open MPI: the communicator has no job" not in run.stderr

    def test_fortran(self, programs):
        compiler = shutil.which("gfortran") or shutil.which("gfortran-12")
        if not compiler or not shutil.which("mpifort"):
            pytest.skip("gfortran and mpifort are not installed")
        compile_with("env", f"OMPI_FC={compiler}", "mpifort", PROGRAMS / "fortran.f90", "-o", programs / "fortran")
        run = mpirun(2, programs / "fortran")
        assert run.returncode == 0, run.stdout + run.stderr
        assert run.stdout.count("Fortran: 0 wrong") == 2
        # The sums of real and integer, one of them not blocking, a reduction, a broadcast, an all-gather and the barrier; double
        # precision is not.
        assert calls(run) == (7, 1), run.stderr

    def test_it_is_off_unless_asked_for(self, programs):
        run = mpirun(2, programs / "all_reduce", "short", enable=0)
        assert run.returncode == 0 and "0 wrong" in run.stdout, run.stderr
        assert "netsum" not in run.stderr

    def test_an_aggregator_that_does_not_answer(self, programs):
        """The program runs all the same; it is said once, and why."""
        run = mpirun(2, programs / "all_reduce", "short", NETSUM_AGGREGATOR="127.0.0.1:1", NETSUM_CONNECT_TIMEOUT="1")
        assert run.returncode == 0 and "0 wrong" in run.stdout, run.stderr
        [line] = re.findall("MPI_COMM_WORLD .* does not use netsum: .*", run.stderr)
        assert "127.0.0.1:1" in line

    def test_small_collectives_can_be_left_to_open_mpi(self, programs):
        run = mpirun(2, programs / "all_reduce", "short", flags=("--mca", "coll_netsum_least_bytes", "4096"))
        assert run.returncode == 0 and "0 wrong" in run.stdout, run.stderr
        taken, passed = calls(run)
        assert 0 < taken < TAKEN
        assert taken + passed == TAKEN + PASSED

    @pytest.mark.measures
    @pytest.mark.parametrize("btl", ["self,vader", "self,tcp"])
    def test_messages_pass_a_rank_that_waits(self, programs, btl):
        """It looks for them every 50 us for a second, so few of them find it in a wait of a millisecond."""
        run = mpirun(2, programs / "waiting", "progress", btl=btl)
        assert run.returncode == 0 and " 0 wrong" in run.stdout, run.stdout + run.stderr
        assert run.stdout.count("of 200 messages after a long wait") == 2

    @pytest.mark.parametrize("where", ["one host", "shards"])
    def test_a_rank_frees_a_communicator_without_the_others(self, programs, where):
        env = {"NETSUM_SHARED_MEMORY": "0"} if where == "shards" else {}
        run = mpirun(3, programs / "waiting", "free", **env)
        assert run.returncode == 0 and " 0 wrong" in run.stdout, run.stdout + run.stderr
        assert "failed" not in run.stderr, run.stderr

    def test_communicators_with_few_calls_do_not_join(self, programs):
        run = mpirun(2, programs / "waiting", "churn", OMPI_MCA_coll_netsum_join_after_calls="32")
        assert run.returncode == 0 and " 0 wrong" in run.stdout, run.stdout + run.stderr
        assert "once (2 ranks) uses netsum" not in run.stderr
        # From the 33rd on, which is blocking; those that are not count, too.
        assert calls(run, "often") == (18, 32), run.stderr
        assert calls(run, "large") == (1, 0), run.stderr

    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            ("counts", "mismatch"),
            ("roots", "mismatch"),
            ("collectives", "mismatch"),
            ("sizes", "its data has another size than its part of the result"),
            ("overflow", "overflow"),
            ("dies", "peer_lost"),
        ],
    )
    def test_faults_end_with_errors(self, programs, fault, words):
        """All ranks that live get an error, and the text says what was wrong."""
        run = mpirun(3, programs / "faults", fault, flags=("--enable-recovery",), NETSUM_SHARED_MEMORY="0")
        assert "no error" not in run.stdout, run.stdout + run.stderr
        assert run.stdout.count("MPI_ERR_OTHER") == (2 if fault == "dies" else 3), run.stdout + run.stderr
        assert re.search(rf"netsum: MPI_\w+ of MPI_COMM_WORLD failed on rank \d: {words}", run.stderr), run.stderr

    def test_calls_after_finalize_are_refused(self, programs):
        run = mpirun(2, programs / "faults", "finalized")
        assert run.returncode != 0
        assert "MPI_Allreduce() function was called after MPI_FINALIZE" in run.stderr, run.stdout + run.stderr
        assert "Signal:" not in run.stderr, run.stderr


class TestMpiInARack(RackCommandTest):
    def test_over_tcp_between_hosts(self, programs):
        """Every rank has a network namespace of its own, and the switch sums. Large messages over TCP need the sender, which
        is in a collective by then."""
        ranks = 4
        self.up("--workers", ranks, "--rate", "none")
        agent = self.folder / "agent"
        agent.write_text(
            "#!/bin/sh\nhost=$1; shift\n"
            'exec unshare --uts sh -c "hostname w$((${host##*.} - 1)); exec \\"\\$0\\" rack exec --name '
            f'{self.name} $((${{host##*.}} - 1)) -- sh -c \\"\\$1\\"" "{NETSUM}" "$*"\n',
            encoding="ascii",
        )
        agent.chmod(0o755)
        address = self.status()["aggregators"][0]["address"]
        flags = [
            *("--mca", "plm_rsh_agent", str(agent)),
            *("--mca", "btl_tcp_if_include", "10.77.0.0/16"),
            *("--mca", "oob_tcp_if_include", "10.77.0.0/16"),
            *("--host", ",".join(f"10.77.0.{w + 1}" for w in range(ranks))),
        ]
        inside = [NETSUM, "rack", "exec", "--name", self.name, "sw", "--"]
        send = [part for name in ("NETSUM_RACK_DIR", "NETSUM_AGGREGATOR") for part in ("-x", name)]
        # `rack exec` sets NETSUM_AGGREGATOR; without it, the ranks embed shards, and must find rank 0's address.
        unset = ("env", "-u", "NETSUM_AGGREGATOR")
        for command, where, least in (
            ((programs / "all_reduce", "short"), address, TAKEN),
            ((programs / "movement", "short"), address, 80),
            ((programs / "reductions",), address, 80),
            ((*unset, programs / "all_reduce", "short"), "4 embedded shards", TAKEN),
        ):
            run = mpirun(
                ranks,
                *command,
                flags=flags + send,
                btl="tcp,self",
                inside=inside,
                NETSUM_RACK_DIR=str(self.folder),
                NETSUM_AGGREGATOR=address,
            )
            assert run.returncode == 0 and "0 wrong" in run.stdout, run.stdout + run.stderr
            [line] = re.findall(r"MPI_COMM_WORLD \(4 ranks\) uses netsum: .*", run.stderr)
            assert where in line
            assert calls(run)[0] >= least


def test_the_component_has_no_undefined_symbols():
    """Programs that load libmpi privately, such as Python, give a component no symbols but those that it links."""
    if not COMPONENT.exists():
        pytest.skip(f"the component of Open MPI was not built: there is no {COMPONENT}")
    run = subprocess.run(["ldd", "-r", COMPONENT], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert "undefined symbol" not in run.stdout + run.stderr
