"""Judge one change against one module: blocks to lay in, or what has moved on upstream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import libcst as cst

from dih20.patches.edits import placing
from dih20.patches.edits.blocks import TEST_ONLY, Block
from dih20.patches.edits.code_files import OwnCode, read_code
from dih20.patches.edits.model import Change, Edit
from dih20.patches.edits.normal_form import matches, normal_form, statement_forms, symbol_form
from dih20.patches.edits.symbols import ParsedModule, Symbol

PartState = Literal[
    "applied", "already", "already upstream", "moved", "body changed", "ambiguous", "missing"
]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What became of one change: its state, and for a refusal what to do about it."""

    place: str
    state: PartState
    note: str = ""
    expected: str = ""
    found: str = ""
    blocks: tuple[Block, ...] = ()

    @property
    def ok(self) -> bool:
        return self.state in ("applied", "already", "already upstream")

    def as_dict(self) -> dict[str, str]:
        names = ("place", "state", "note", "expected", "found")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


@dataclass(frozen=True, kw_only=True)
class Judge:
    """One edit's folder, and how to look elsewhere in the tree when a symbol is not in its place."""

    edit: Edit
    folder: Path
    elsewhere: Callable[[Change, ParsedModule | None], Part]

    def judge(self, change: Change, module: ParsedModule) -> Part:
        """Judge a change; `module` is the file without any blocks."""
        if change.action == "replace-import":
            return self._import(change, module)
        found = module.symbols.get(change.symbol, [])
        if not found:
            return self.elsewhere(change, module)
        if len(found) > 1:
            lines = ", ".join(str(symbol.first + 1) for symbol in found)
            return Part(
                place=change.place,
                state="ambiguous",
                note=f"it is defined {len(found)} times, at lines {lines}: name the right one by an "
                f"enclosing class or function, or make the edit for both",
            )
        (symbol,) = found
        if self._is_upstream(change, module, symbol):
            note = "upstream's text does by itself what this edit does"
            return Part(place=change.place, state="already upstream", note=note)
        if symbol.fingerprint != change.fingerprint:
            return self._changed(change, symbol)
        blocks = tuple(self._blocks(change, module, symbol))
        if isinstance(fault := self._site_fault(change, module, symbol), Part):
            return fault
        return Part(place=change.place, state="applied", blocks=blocks)

    def _code(self, change: Change) -> OwnCode:
        named = change.action in ("insert-branch", "replace-function")
        wants = change.symbol.rsplit(".", 1)[-1] if named else ""
        return read_code(self.folder, change.code, wants_symbol=wants)

    def _what(self, change: Change) -> str:
        what = f"{change.action} {change.symbol or change.imported}"
        if detail := change.target or change.keyword:
            what += f" {detail}"
        return f"{TEST_ONLY} {what}" if self.edit.test_only else what

    def _blocks(self, change: Change, module: ParsedModule, symbol: Symbol) -> list[Block]:
        edit, what = self.edit.id, self._what(change)
        match change.action:
            case "insert-branch":
                return [placing.entry_block(module, symbol, self._code(change), edit, what)]
            case "replace-function":
                return [placing.replacing_block(module, symbol, self._code(change), edit, what)]
            case "add-after":
                return [placing.following_block(module, symbol, self._code(change), edit, what)]
            case _:
                splices = placing.splices_of(module, symbol, change)
                return list(placing.spliced_blocks(module, splices, edit, what))

    def _site_fault(self, change: Change, module: ParsedModule, symbol: Symbol) -> Part | None:
        if change.action not in ("wrap-return", "wrap-assignment", "set-keyword"):
            return None
        number = len(placing.splices_of(module, symbol, change))
        if number == change.sites:
            return None
        return Part(
            place=change.place,
            state="ambiguous" if number > change.sites else "missing",
            note=f"{number} sites of {change.target or change.callee or 'return'} where edit.yaml "
            f"expects {change.sites}: set sites: {number} if each of them is meant",
        )

    def _changed(self, change: Change, symbol: Symbol) -> Part:
        assert change.fingerprint is not None
        note = f"its code is not that of 0.1.0 any more (lines {symbol.first + 1}-{symbol.last})"
        if change.code and change.action in ("insert-branch", "replace-function"):
            ours = self._code(change).symbol
            assert ours is not None
            note += _signature_note(ours.parameters, symbol.parameters, change.code)
        note += (
            f"; read what upstream changed there, bring patches/sm90/{self.edit.id}/"
            f"{change.code or 'edit.yaml'} in line with it, then set fingerprint: {symbol.fingerprint}"
        )
        return Part(
            place=change.place,
            state="body changed",
            note=note,
            expected=change.fingerprint,
            found=symbol.fingerprint,
        )

    def _is_upstream(self, change: Change, module: ParsedModule, symbol: Symbol) -> bool:
        """Say whether the text, without our markers, is what this change would make of it."""
        match change.action:
            case "insert-branch":
                own = self._code(change).symbol
                assert own is not None
                wanted = list(statement_forms(own.statements, with_docstring=True))
                there = list(statement_forms(symbol.statements, with_docstring=True))
                return there[: len(wanted)] == wanted
            case "replace-function":
                own = self._code(change).symbol
                assert own is not None
                return bool(symbol_form(own.node) == symbol_form(symbol.node))
            case "add-after":
                code = self._code(change)
                names = [name for name in code.module.symbols if "." not in name]
                return bool(names) and all(
                    name in module.symbols
                    and symbol_form(module.symbols[name][0].node)
                    == symbol_form(code.module.symbols[name][0].node)
                    for name in names
                )
            case _:
                return _sites_are_done(change, module, symbol)

    def _import(self, change: Change, module: ParsedModule) -> Part:
        package, _, name = change.imported.rpartition(".")
        code = self._code(change)
        found = [line for line in module.module.body if _imports(line, package, name)]
        if not found:
            wanted = [normal_form(each) for each in code.statements]
            there = [normal_form(each) for each in module.module.body]
            if all(form in there for form in wanted):
                note = "upstream's text does by itself what this edit does"
                return Part(place=change.place, state="already upstream", note=note)
            return Part(
                place=change.place,
                state="missing",
                note=f"no `from {package} import {name}` on a line of its own at the module's top level: "
                "see what the file imports now, and set import: to it or take the change out",
            )
        if len(found) > 1:
            return Part(
                place=change.place, state="ambiguous", note=f"{len(found)} such imports, wanted 1"
            )
        (line,) = found
        assert isinstance(line, cst.SimpleStatementLine)
        block = placing.import_block(module, line, code, self.edit.id, self._what(change))
        return Part(place=change.place, state="applied", blocks=(block,))


def _imports(line: cst.CSTNode, package: str, name: str) -> bool:
    """Say whether a statement is `from package import name` and nothing else."""
    wanted = normal_form(cst.parse_statement(f"from {package} import {name}\n"))
    return isinstance(line, cst.SimpleStatementLine) and bool(normal_form(line) == wanted)


def _sites_are_done(change: Change, module: ParsedModule, symbol: Symbol) -> bool:
    pattern = normal_form(cst.parse_expression(change.expression))
    values = placing.values_of(module, symbol, change)
    return len(values) == change.sites and all(
        value is not None and matches(pattern, normal_form(value)) for value in values
    )


def _signature_note(ours: tuple[str, ...], theirs: tuple[str, ...], code: str) -> str:
    added = [name for name in theirs if name not in ours]
    gone = [name for name in ours if name not in theirs]
    note = "".join(f"; upstream added parameter {name}" for name in added)
    note += "".join(f"; upstream dropped parameter {name}" for name in gone)
    return note + (f" ({code} has {', '.join(ours) or 'none'})" if added or gone else "")
