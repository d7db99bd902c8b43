"""A root file system that has certain Debian packages, what they depend on, and nothing else.

It is made of the packages that are installed on this machine, so it needs no network: their files are copied, and their
entries in dpkg's database. dpkg then works in it as on a new machine, and refuses a package whose dependencies are not
there. Programs run in it with chroot, in namespaces of their own, whose network is a loopback interface.
"""

import functools
import os
import pathlib
import re
import subprocess

import pytest

# Not needed to run programs.
LEFT_OUT = re.compile(r"/usr/share/(doc|info|lintian|locale|man)/")
# Of a package whose files are there. While apt runs, some may wait for triggers.
COMPLETE = ("installed", "triggers-awaited", "triggers-pending")
LIMIT_S = 300
ENVIRONMENT = ["env", "-i", "HOME=/root", "LC_ALL=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"]
# Runs as the first process of new namespaces: $1 is the root, then come folders of this machine with their places in the
# root, for reading, and after -- a command in it.
ENTER = """
set -e
root=$1
shift
ip link set lo up
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev"
for device in null zero full random urandom; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
while [ "$1" != -- ]; do
  mount --bind "$1" "$root$2"
  mount -o remount,bind,ro "$root$2"
  shift 2
done
shift
mkdir "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
exec chroot "$root" "$@"
"""


def output_of(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S, **more).stdout


@functools.cache
def namespaces():
    """The command that runs another one in new namespaces; skips the test where that is not possible."""
    command = ["unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    probe = subprocess.run(
        [*command, "mount", "-t", "proc", "proc", "/proc"], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip(f"this machine does not let us make namespaces: {probe.stderr.strip()}")
    return command


class Installed:
    """The packages that are installed on this machine."""

    def __init__(self):
        fields = ("binary:Package", "Package", "db:Status-Status", "Essential", "Pre-Depends", "Depends", "Provides")
        text = output_of("dpkg-query", "-W", "-f", "\\t".join(f"${{{field}}}" for field in fields) + "\\n")
        self.names = {}  # as dpkg-query takes it, by package name
        self.needs = {}
        self.provides = {}
        self.essential = []
        for line in text.splitlines():
            full_name, name, status, essential, *needs, provides = line.split("\t")
            if status not in COMPLETE or name in self.names:
                continue
            self.names[name] = full_name
            self.needs[name] = ", ".join(filter(None, needs))
            if essential == "yes":
                self.essential.append(name)
            for virtual in names_in(provides):
                self.provides.setdefault(virtual[0], name)

    def closure(self, names):
        """These packages with all that they depend on."""
        found, left = set(), [self.choose([name]) for name in names]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self.needed(self.needs[name])
        return found

    def needed(self, dependencies):
        """The installed packages that satisfy a field `Depends`."""
        return [self.choose(alternatives) for alternatives in names_in(dependencies)]

    def choose(self, alternatives):
        for name in alternatives:
            if name in self.names:
                return name
            if name in self.provides:
                return self.provides[name]
        raise AssertionError(f"none of {alternatives} is installed on this machine")


def names_in(field):
    """The names of a field such as `a (>= 1), b | c:any`: a list of alternatives for each entry."""
    entries = [entry for entry in field.split(",") if entry.strip()]
    return [[re.split(r"[\s:(\[]", name.strip())[0] for name in entry.split("|")] for entry in entries]


class CleanRoot:
    """A root of the essential packages; add() adds others."""

    def __init__(self, folder):
        self.path = pathlib.Path(folder)
        self.installed = Installed()
        self.packages = set()
        self.mounts = {}  # folders of this machine that commands can read, and where
        # Those in /usr are what links such as /bin, which are copied before them, point to.
        for name in ("usr/bin", "usr/lib", "usr/lib32", "usr/lib64", "usr/libx32", "usr/sbin", "dev", "proc", "sys"):
            (self.path / name).mkdir(parents=True)
        for name in ("root", "run", "tmp", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log"):
            (self.path / name).mkdir(parents=True)
        (self.path / "var/lib/dpkg/status").touch()
        (self.path / "var/lib/dpkg/info/format").write_text("1\n", encoding="ascii")
        self.add(self.installed.essential)
        (self.path / "etc/hosts").write_text("127.0.0.1 localhost\n", encoding="ascii")
        for name in ("passwd", "group"):  # as base-passwd does when it is installed
            master = self.path / f"usr/share/base-passwd/{name}.master"
            (self.path / "etc" / name).write_bytes(master.read_bytes())

    def add(self, names):
        """Adds packages with all that they depend on, except what is there already."""
        new = sorted(self.installed.closure(names) - self.packages)
        if not new:
            return
        self.packages.update(new)
        full_names = [self.installed.names[name] for name in new]
        files = {path for path in output_of("dpkg-query", "-L", *full_names).splitlines() if path.startswith("/")}
        files -= {"/."}
        for name in full_names:  # what dpkg knows of the package's files
            stem = pathlib.Path("/var/lib/dpkg/info") / name
            files.update(f"{stem}{suffix}" for suffix in (".list", ".triggers", ".shlibs", ".symbols"))
        kept = sorted(path for path in files if os.path.lexists(path) and not LEFT_OUT.match(path))
        listed = "".join(f".{path}\0" for path in kept)
        archive = subprocess.Popen(
            ["tar", "-C", "/", "--no-recursion", "--null", "-T", "-", "-cf", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        copy = subprocess.Popen(["tar", "-C", self.path, "--keep-directory-symlink", "-xf", "-"], stdin=archive.stdout)
        archive.stdout.close()
        archive.stdin.write(listed.encode())
        archive.stdin.close()
        assert (archive.wait(LIMIT_S), copy.wait(LIMIT_S)) == (0, 0)
        with (self.path / "var/lib/dpkg/status").open("a", encoding="utf-8") as status:
            status.write(output_of("dpkg-query", "-s", *full_names) + "\n")
        self.run("ldconfig")

    def add_what_is_needed_by(self, *packages):
        """Adds what the files of packages (.deb) depend on, except each other."""
        names = {output_of("dpkg-deb", "-f", package, "Package").strip() for package in packages}
        for package in packages:
            dependencies = names_in(output_of("dpkg-deb", "-f", package, "Depends").strip())
            self.add([self.installed.choose(entry) for entry in dependencies if not names & set(entry)])

    def put(self, source, target):
        """Copies a file of this machine into the root."""
        target = self.path / target.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(pathlib.Path(source).read_bytes())
        target.chmod(pathlib.Path(source).stat().st_mode & 0o777)

    def try_to_run(self, *command):
        """Runs a command in the root; returns the finished process, with standard error in its standard output."""
        places = [part for source, target in self.mounts.items() for part in (source, target)]
        for target in self.mounts.values():
            (self.path / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
        return subprocess.run(
            [*namespaces(), "sh", "-c", ENTER, "enter", self.path, *places, "--", *ENVIRONMENT, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def run(self, *command):
        """Runs a command that must succeed; returns its output."""
        run = self.try_to_run(*command)
        assert run.returncode == 0, f"{' '.join(command)} in a clean root ended with {run.returncode}:\n{run.stdout}"
        return run.stdout

    def run_script(self, text, *arguments):
        """Runs a script of the shell that must succeed; returns its output."""
        return self.run("sh", "-euc", text, "script", *arguments)
