#!/usr/bin/env python3
"""Boots another Linux kernel in a virtual machine and checks that netsum works on it: XDP, AF_XDP, virtual racks.

The kernel is a Debian package, which is downloaded and unpacked in build/kernel but not installed. The machine's memory
holds all of its files: busybox, dash, `ip`, `tc` and `ethtool` of this system, and what build/release holds of netsum. It has
no network and no disk. qemu emulates the processor, which works on every host, but wants one that is idle: beside other
work on all cores a boot alone can take minutes.
"""

import argparse
import dataclasses
import lzma
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
OUT = ROOT / "build" / "kernel"
HERE = ROOT / "tests" / "kernel"
VECTORS = ROOT / "wire" / "vectors"  # where the tests look for them: they were compiled with the path of the checkout

EXAMPLES = """examples:
  tests/kernel/run.py                                  the kernel of Debian's linux-image-cloud-amd64
  tests/kernel/run.py --package linux-image-amd64      another one of the archive's
  tests/kernel/run.py --deb linux-image-5.15.0-1.deb   a package that is here already
  tests/kernel/run.py --only xdp,af_xdp --verbose      some checks, with all that the machine prints

exits with 0 if every check passed, 1 if one failed, 2 if the machine could not be made.
"""

BINARIES = {
    "netsum": BUILD / "tools" / "netsum" / "netsum",
    "conformance_tests": BUILD / "tests" / "conformance" / "conformance_tests",
    "frames_probe": BUILD / "tests" / "kernel" / "frames_probe",
}
SYSTEM_TOOLS = ["ip", "tc", "ethtool", "dash"]
# Folders of modules that the machine gets: virtual links, bridges, shaping.
MODULE_FOLDERS = ["net/bridge", "net/802", "net/llc", "net/sched"]
MODULES = ["drivers/net/veth", "drivers/net/ifb", "drivers/net/tun"]

CPUS = 1  # emulated ones wait for each other, which on a busy host takes them minutes

COMMAND_LIMIT_S = 120
DOWNLOAD_LIMIT_S = 400
BOOT_LIMIT_S = 300


class Failed(Exception):
    """The machine cannot be made; says what to do."""


@dataclasses.dataclass
class Check:
    """`command` must end with status 0 within `limit_s`, and print all of `wanted` and none of `unwanted`."""

    name: str
    what: str
    limit_s: int
    command: str
    wanted: list
    unwanted: list = dataclasses.field(default_factory=list)


def rack_check(name, what, workers, rack_flags, summed_by, bench_flags="", packets=""):
    return Check(
        name,
        what,
        600,
        f'rack_sum {workers} "{rack_flags}" "{bench_flags}"',
        ["verified: true", f": {summed_by}, 1 core", packets],
        ["FAILED"],
    )


def gtest_check(name, what, *sources):
    command = " ".join(["conformance_tests", *(f"tests/conformance/{source}" for source in sources)])
    return Check(name, what, 900, command, ["[  PASSED  ]"], ["SKIPPED"])


CHECKS = [
    Check(
        "doctor",
        "netsum doctor finds nothing that fails",
        120,
        "netsum doctor",
        ["AF_XDP: available", "UDP GSO (UDP_SEGMENT): available", "UDP GRO: available"],
    ),
    gtest_check(
        "xdp_test",
        "the XDP program gives the golden vectors, run by the kernel packet by packet",
        "xdp_test.cc",
        "xdp_jobs_test.cc",
    ),
    gtest_check("attached_test", "the XDP program attached to veth ports, over real links", "attached_test.cc"),
    gtest_check("af_xdp_test", "workers' packets by AF_XDP, over real links", "af_xdp_test.cc"),
    Check(
        "frames",
        "frames of more than a page do not reach all members: if they do, XDP can use MTU 9000 (docs/results.md)",
        60,
        "frames 3000 6000 8900",
        ["3000 bytes to 3 members: 3000 3000 3000"],
        ["6000 bytes to 3 members: 6000 6000 6000"],
    ),
    rack_check("user", "2 workers, user-space aggregator", 2, "--dataplane user", "user-space"),
    rack_check("xdp", "2 workers, XDP aggregator", 2, "--dataplane xdp", "xdp"),
    rack_check("shaped", "2 workers at 1 Gbit/s, XDP aggregator", 2, "--dataplane xdp --rate 1gbit", "xdp"),
    rack_check("jumbo", "3 workers, XDP aggregator, MTU 3400", 3, "--dataplane xdp --mtu 3400", "xdp", "--mtu 3400"),
    rack_check(
        "af_xdp",
        "2 workers by AF_XDP, XDP aggregator",
        2,
        "--dataplane xdp",
        "xdp",
        "--packet-io af_xdp",
        "packets by af_xdp",
    ),
    rack_check(
        "af_xdp_user",
        "2 workers by AF_XDP, user-space aggregator",
        2,
        "--dataplane user",
        "user-space",
        "--packet-io af_xdp",
        "packets by af_xdp",
    ),
    rack_check(
        "spine",
        "4 workers in 2 racks under a spine, all XDP",
        4,
        "--racks 2 --dataplane xdp",
        "xdp below xdp at 10.77.2.1:5151",
    ),
]


def run(command, limit_s=COMMAND_LIMIT_S, **more):
    try:
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, check=False, timeout=limit_s, **more
        )
    except FileNotFoundError as error:
        raise Failed(f"'{command[0]}' is not installed: scripts/bootstrap.sh --kernel-test") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"`{' '.join(map(str, command))}` did not end within {limit_s} s") from error
    if done.returncode != 0:
        raise Failed(f"`{' '.join(map(str, command))}` failed:\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def newest_image(package):
    """linux-image-amd64 names no version, but depends on the package that holds the kernel."""
    depends = re.search(
        r"^Depends:.*?\b(linux-image-\d\S*)", run(["apt-cache", "show", "--no-all-versions", package]), re.MULTILINE
    )
    return depends.group(1).rstrip(",") if depends else package


def download(package):
    """The package's file, kept from run to run."""
    try:
        image = newest_image(package)
        uri = run(["apt-get", "download", "--print-uris", image]).split()
    except Failed as error:
        raise Failed(
            f"{error}\nIs there such a package in this system's archive? Try `apt-get update`, and "
            f"`apt-cache search '^linux-image'`; --deb FILE takes a package from elsewhere."
        ) from error
    file = OUT / uri[1]
    if not file.exists():
        print(f"downloading {image}", flush=True)
        run(["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", image], DOWNLOAD_LIMIT_S, cwd=OUT)
    return file


def unpack(deb):
    """Returns the folder, and the kernel's release."""
    if not deb.is_file():
        raise Failed(f"there is no file {deb}")
    folder = OUT / "unpacked" / deb.stem
    if not folder.exists():
        fresh = folder.with_name(folder.name + ".new")  # renamed when whole
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        run(["dpkg", "-x", deb, fresh])
        fresh.rename(folder)
    kernels = list((folder / "boot").glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise Failed(f"{deb} holds {len(kernels)} kernels in /boot; --deb takes one linux-image package")
    return folder, kernels[0].name.removeprefix("vmlinuz-")


def libraries(program):
    """{path in the machine: path here} of what the program is linked with."""
    found = {}
    for line in run(["ldd", program]).splitlines():
        path = re.search(r"(/\S+) \(0x", line)
        if "not found" in line:
            raise Failed(f"{program} lacks a library: {line.strip()}")
        if path and "ld-linux" in path.group(1):
            found[path.group(1)] = path.group(1)
        elif path:
            found["/usr/lib/x86_64-linux-gnu/" + os.path.basename(path.group(1))] = path.group(1)
    return found


def put(tree, path, source):
    target = tree / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def put_modules(tree, unpacked, release):
    """Debian keeps them in /lib/modules, later releases in /usr/lib/modules."""
    places = [unpacked / folder / "modules" / release for folder in ("lib", "usr/lib")]
    place = next((place for place in places if place.exists()), None)
    if place is None:
        raise Failed(f"the package has no modules for {release} in /lib/modules")
    files = [file for folder in MODULE_FOLDERS for file in (place / "kernel" / folder).glob("*.ko*")]
    files += [file for module in MODULES for file in (place / "kernel").glob(f"{module}.ko*")]
    for file in [*files, *place.glob("modules.*")]:
        path = f"/lib/modules/{release}/{file.relative_to(place)}"
        put(tree, path, file)
        if file.suffix == ".xz":  # which busybox cannot load
            packed = tree / path.lstrip("/")
            packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
            packed.unlink()
    run(["busybox", "depmod", "-b", tree, release])


def make_tree(unpacked, release, checks):
    """The machine's files."""
    tree = OUT / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for folder in ("bin", "dev", "proc", "sys", "run", "tmp", "etc"):
        (tree / folder).mkdir(parents=True)
    search = os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"
    tools = {name: shutil.which(name, path=search) for name in [*SYSTEM_TOOLS, "busybox"]}
    for name, path in {**tools, **BINARIES}.items():
        if path is None:
            raise Failed(f"'{name}' is not installed: scripts/bootstrap.sh --kernel-test")
        if not os.path.exists(path):
            raise Failed(f"{path} is missing: build it with `make build`")
    put(tree, "/bin/busybox", tools.pop("busybox"))
    for name, path in {**tools, **BINARIES}.items():
        put(tree, f"/usr/bin/{name}", path)
        for inside, here in libraries(path).items():
            put(tree, inside, here)
    for vector in VECTORS.glob("*.json"):
        put(tree, str(vector), vector)
    put_modules(tree, unpacked, release)
    put(tree, "/init", HERE / "guest_init.sh")
    put(tree, "/usr/bin/rack_sum", HERE / "guest_rack_sum.sh")
    put(tree, "/usr/bin/frames", HERE / "guest_frames.sh")
    (tree / "checks").write_text("".join(f"{c.name} {c.limit_s} {c.command}\n" for c in checks), encoding="utf-8")
    return tree


def pack(tree):
    """The tree as an initramfs."""
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    made = subprocess.run(
        ["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"],
        input=names.encode(),
        cwd=tree,
        capture_output=True,
        check=False,
        timeout=COMMAND_LIMIT_S,
    )
    if made.returncode != 0:
        raise Failed(f"cpio failed: {made.stderr.decode(errors='replace')}")
    image = OUT / "initramfs.cpio"  # not compressed: an emulated processor is slow at that
    image.write_bytes(made.stdout)
    return image


def boot(kernel, image, limit_s, log, verbose):
    """Runs the machine to its end; returns what it printed, and whether its time ran out."""
    # On a busy host an emulated timer ticks too late for the kernel's tests of it. Without cx16: Linux 6.12 crashed behind that
    # instruction in qemu 7.2.
    command = [
        "qemu-system-x86_64",
        "-accel",
        "tcg",
        "-cpu",
        "max,-cx16",
        "-smp",
        str(CPUS),
        "-m",
        "2G",
        "-nic",
        "none",
        "-nographic",
        "-no-reboot",
        "-kernel",
        str(kernel),
        "-initrd",
        str(image),
        "-append",
        "console=ttyS0 mitigations=off loglevel=3 panic=-1 no_timer_check nowatchdog",
    ]
    with open(log, "wb") as output:
        machine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + limit_s
        shown = 0
        try:
            while machine.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
                shown = show(log, shown, verbose)
        finally:
            timed_out = machine.poll() is None
            if timed_out:
                machine.kill()
            machine.wait()
    show(log, shown, verbose)
    return read_log(log), timed_out


def read_log(log):
    return log.read_bytes().decode(errors="replace").replace("\r", "")


def show(log, shown, verbose):
    """Prints what is new since `shown` characters; without --verbose only which check runs."""
    text = read_log(log)
    end = text.rfind("\n") + 1
    for line in text[shown:end].splitlines():
        if verbose:
            print("  |", line, flush=True)
        elif line.startswith("@@ begin "):
            print("running", line.removeprefix("@@ begin "), flush=True)
    return end


def verdict(check, text):
    """None if it passed; otherwise why not."""
    begin, end = f"@@ begin {check.name}\n", rf"^@@ end {re.escape(check.name)} (\d+)$"
    if begin not in text:
        return "was not run: the machine ended before"
    said = text.split(begin, 1)[1]
    ended = re.search(end, said, re.MULTILINE)
    said = said[: ended.start()] if ended else said
    tail = "\n".join("      " + line for line in said.splitlines()[-40:])
    if not ended:
        return f"did not end; its last words:\n{tail}"
    if ended.group(1) == "137":
        return f"did not end within {check.limit_s} s; its last words:\n{tail}"
    if ended.group(1) != "0":
        return f"exit status {ended.group(1)}; its last words:\n{tail}"
    for words in check.wanted:
        if words not in said:
            return f"does not say '{words}':\n{tail}"
    for words in check.unwanted:
        if words in said:
            return f"says '{words}':\n{tail}"
    return None


def judge(checks, text, timed_out):
    """Prints a line per check; returns whether all passed."""
    failed = 0
    print()
    for check in checks:
        why = verdict(check, text)
        failed += why is not None
        print(f"{'ok  ' if why is None else 'FAIL'}  {check.name}: {check.what if why is None else why}")
    if timed_out:
        print("the machine did not end in time and was stopped")
    print(f"\n{len(checks) - failed} of {len(checks)} checks passed", flush=True)
    return failed == 0


def chosen(only):
    if not only:
        return CHECKS
    names = only.split(",")
    unknown = sorted(set(names) - {check.name for check in CHECKS})
    if unknown:
        raise Failed(f"--only: there is no check '{unknown[0]}'; there are {', '.join(c.name for c in CHECKS)}")
    return [check for check in CHECKS if check.name in names]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--package", default="linux-image-cloud-amd64", help="name of the package (default: %(default)s)"
    )
    source.add_argument("--deb", type=pathlib.Path, metavar="FILE", help="a linux-image package, instead of a download")
    parser.add_argument(
        "--only", metavar="NAMES", help="checks to run, with commas: " + ", ".join(check.name for check in CHECKS)
    )
    parser.add_argument("--verbose", action="store_true", help="print all that the machine prints, as it comes")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # by the `finally` that ends the machine
    try:
        if platform.machine() != "x86_64":
            raise Failed(f"this test boots x86-64 kernels with programs of this machine, which is {platform.machine()}")
        checks = chosen(arguments.only)
        OUT.mkdir(parents=True, exist_ok=True)
        unpacked, release = unpack(arguments.deb or download(arguments.package))
        image = pack(make_tree(unpacked, release, checks))
        print(f"booting Linux {release}", flush=True)
        log = OUT / f"console-{release}.log"
        # The sum of the limits is reached only if everything hangs.
        text, timed_out = boot(
            unpacked / "boot" / f"vmlinuz-{release}",
            image,
            BOOT_LIMIT_S + sum(check.limit_s for check in checks),
            log,
            arguments.verbose,
        )
    except Failed as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    passed = judge(checks, text, timed_out)
    print(f"Linux {release}; all that the machine printed: {log}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
