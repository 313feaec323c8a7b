"""Every way to fail, with its exit code, in one place.

    ToolError                      1
    ├── UsageError                 2   the command line asks for something that makes no sense
    ├── ConfigError                3   a file under configs/ (or one given by the user) is wrong
    ├── LockError                  4   di.lock.yaml is missing, stale or contradicts itself
    │   ├── Unresolved             5   a pin is needed that was never resolved
    │   └── PinMoved               6   what a name points to now is not what the lock says
    ├── FetchError                 7   an input cannot be had
    │   └── HashMismatch           8   an input was had, and it is not the locked one
    ├── EngineError               10   the Docker engine cannot be used
    ├── ImageError                11   an image step failed, or the image is not what was asked
    │   ├── HeaderMismatch        12   a header is missing or belongs to another CUDA
    │   └── NcclMismatch          13   header, distribution and mapped library disagree
    ├── WheelError                20   a wheel cannot be built
    │   ├── CompilerKilled        21   the compiler was killed, most likely for memory
    │   ├── CompilerCrash         22   the compiler itself crashed
    │   ├── InspectionFailed      23   the built binary is not what its recipe promises
    │   └── NotForSm90            24   nothing in it can run on Hopper
    ├── PatchError                30   a patch does not apply
    │   └── PatchMalformed        31   a patch file is not a readable unified diff
    ├── HostError                 40   a host cannot be used
    │   ├── ConnectFailed         41   no SSH connection
    │   ├── HostKeyRefused        42   the host key is unknown or has changed
    │   ├── AuthFailed            43   the host refused our key
    │   ├── CommandFailed         44   a command exited non-zero
    │   └── PreflightFailed       45   the host is not fit for the deploy
    ├── DeployError               50   the container could not be put in place
    │   ├── ContainerConflict     51   the name is taken by something that is not ours to replace
    │   └── DeployLocked          52   another deploy to this host is running
    ├── DoctorFindings            60   something is missing; the report says what
    ├── TestsFailed               61   tests, linters or benchmarks did not pass
    ├── RehearsalFailed           62   a stage of the rehearsal did not do what it does on a real host
    ├── DumpUnusable              63   a dump of tensors cannot be read, or two cannot be compared
    ├── ParityDiverged            64   two runs differ; the first wrong tensor is named
    ├── ParityIncomplete          65   nothing differs, but not everything was compared
    ├── NotReproducible           71   the same inputs gave other bits; what differs is named
    ├── HostDrifted               72   what runs on a host is not what lock and tree here say
    └── ServeError                80   the server cannot do its job
        ├── EngineStartFailed     81   the engine died or went silent before it was ready
        ├── RankLost              82   a rank of a running engine died or stopped stepping
        ├── GateFailed            83   the engine runs, and its answer to a known question is wrong
        ├── NotServing            84   nothing answers, or what answers is not the server that was started
        ├── UnfitToServe          85   something is missing before a start; nothing was stopped
        ├── StartFailed           86   the server did not become ready, and none was there before
        ├── FellBack              87   the new server did not become ready; the one before it serves again
        ├── LeftBehind            88   after a stop, a process or GPU memory is left
        └── DegenerateAnswer      89   the server answers, and not as a healthy model does

A message has three parts: what was found, what was expected and from where, what to run next.
Exit code 70 is kept for a fault of this program itself; 130 for an interrupt.
"""

from __future__ import annotations

from typing import Any

INTERNAL_FAULT = 70
INTERRUPTED = 130


class ToolError(Exception):
    """Carry what was found, what was expected and from where, and what to run next.

    Example:
        raise ConfigError(
            found="configs/hosts/nv-h20.yaml:7: unknown key 'gpu_cout'",
            expected="one of the keys in dih20.config.HostConfig (did you mean 'gpu_count'?)",
            remedy="correct the key, then run the command again",
        )
    """

    exit_code = 1

    def __init__(
        self, *, found: str, expected: str, remedy: str, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(found, expected, remedy)
        self.found = found
        self.expected = expected
        self.remedy = remedy
        self.details = details or {}

    def __str__(self) -> str:
        return f"{self.found}\n  expected: {self.expected}\n  next:     {self.remedy}"

    def as_dict(self) -> dict[str, Any]:
        """Give the error as plain values, for --json; details hold what a task had found so far."""
        return {
            "kind": type(self).__name__,
            "found": self.found,
            "expected": self.expected,
            "next": self.remedy,
            "exit_code": self.exit_code,
            **({"details": self.details} if self.details else {}),
        }


class UsageError(ToolError):
    exit_code = 2


class ConfigError(ToolError):
    exit_code = 3


class LockError(ToolError):
    exit_code = 4


class Unresolved(LockError):
    exit_code = 5


class PinMoved(LockError):
    exit_code = 6


class FetchError(ToolError):
    exit_code = 7


class HashMismatch(FetchError):
    exit_code = 8


class EngineError(ToolError):
    exit_code = 10


class ImageError(ToolError):
    exit_code = 11


class HeaderMismatch(ImageError):
    exit_code = 12


class NcclMismatch(ImageError):
    exit_code = 13


class WheelError(ToolError):
    exit_code = 20


class CompilerKilled(WheelError):
    exit_code = 21


class CompilerCrash(WheelError):
    exit_code = 22


class InspectionFailed(WheelError):
    exit_code = 23


class NotForSm90(WheelError):
    exit_code = 24


class PatchError(ToolError):
    exit_code = 30


class PatchMalformed(PatchError):
    exit_code = 31


class HostError(ToolError):
    exit_code = 40


class ConnectFailed(HostError):
    exit_code = 41


class HostKeyRefused(HostError):
    exit_code = 42


class AuthFailed(HostError):
    exit_code = 43


class CommandFailed(HostError):
    exit_code = 44


class PreflightFailed(HostError):
    exit_code = 45


class DeployError(ToolError):
    exit_code = 50


class ContainerConflict(DeployError):
    exit_code = 51


class DeployLocked(DeployError):
    exit_code = 52


class DoctorFindings(ToolError):
    exit_code = 60


class TestsFailed(ToolError):
    exit_code = 61
    __test__ = False  # its name looks like a test case to pytest


class RehearsalFailed(ToolError):
    exit_code = 62


class DumpUnusable(ToolError):
    exit_code = 63


class ParityDiverged(ToolError):
    exit_code = 64


class ParityIncomplete(ToolError):
    exit_code = 65


class NotReproducible(ToolError):
    exit_code = 71


class HostDrifted(ToolError):
    exit_code = 72


class ServeError(ToolError):
    exit_code = 80


class EngineStartFailed(ServeError):
    exit_code = 81


class RankLost(ServeError):
    exit_code = 82


class GateFailed(ServeError):
    exit_code = 83


class NotServing(ServeError):
    exit_code = 84


class UnfitToServe(ServeError):
    exit_code = 85


class StartFailed(ServeError):
    exit_code = 86


class FellBack(ServeError):
    exit_code = 87


class LeftBehind(ServeError):
    exit_code = 88


class DegenerateAnswer(ServeError):
    exit_code = 89
