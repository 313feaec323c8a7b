"""Names in a diff: unquoted, without their first component, and inside the tree."""

from __future__ import annotations

from dih20.errors import PatchError, PatchMalformed

_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


def malformed(name: str, line: int, what: str) -> PatchMalformed:
    return PatchMalformed(
        found=f"patch file malformed: {what} at line {line} of {name}",
        expected="a unified diff, byte for byte as `git diff` or `diff -u` wrote it",
        remedy="make the diff again, and carry it in a way that keeps its bytes (no editor, no mail body)",
    )


def side_path(patch: str, line: int, moved: str | None, header: str) -> str:
    """Give one side's path in the tree; empty for /dev/null. `moved` names carry no prefix."""
    if moved is not None:
        return inside(patch, line, _unquote(patch, line, moved))
    if header == "/dev/null":
        return ""
    text = _unquote(patch, line, header)
    prefix, slash, rest = text.partition("/")
    if not slash or not prefix:
        return inside(patch, line, text)
    return inside(patch, line, rest)


def inside(patch: str, line: int, path: str) -> str:
    """Give the path back, or refuse one that leaves the tree or reaches into git's own folder."""
    if path.endswith("\r"):
        raise malformed(patch, line, "CRLF")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or parts[0] == ".git" or "\0" in path:
        raise PatchError(
            found=f"{patch}:{line}: the path {path!r} is not inside the tree",
            expected="paths as git writes them, a/FOLDER/FILE and b/FOLDER/FILE, from the top of upstream's tree",
            remedy="make the diff again at the top of the tree, with `git diff`",
        )
    return path


def _unquote(patch: str, line: int, text: str) -> str:
    """Undo git's C quoting, and give UTF-8 names as text; other bytes survive as surrogates."""
    if not (text.startswith('"') and text.rstrip("\r").endswith('"') and len(text) > 1):
        return text.encode("latin-1").decode("utf-8", errors="surrogateescape")
    out = bytearray()
    rest = iter(text.rstrip("\r")[1:-1])
    for character in rest:
        if character != "\\":
            out += character.encode("latin-1")
            continue
        follow = next(rest, "")
        if follow in _ESCAPES:
            out.append(_ESCAPES[follow])
            continue
        digits = follow + next(rest, "") + next(rest, "")
        if len(digits) != 3 or any(digit not in "01234567" for digit in digits):
            raise malformed(patch, line, f"the quoted name {text}")
        out.append(int(digits, 8) & 0xFF)
    return bytes(out).decode("utf-8", errors="surrogateescape")


def quoted(path: str) -> bytes:
    """Give a path as git writes it in a diff: in C quotes when a byte of it needs them."""
    plain = path.encode("utf-8", errors="surrogateescape")
    names = {code: letter for letter, code in _ESCAPES.items()}
    out = "".join(
        f"\\{names[byte]}" if byte in names else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
        for byte in plain
    )
    return f'"{out}"'.encode() if len(out) != len(plain) else plain
