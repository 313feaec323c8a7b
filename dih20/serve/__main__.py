"""python -m dih20.serve --settings FILE"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import traceback
from pathlib import Path

from dih20.errors import INTERNAL_FAULT, INTERRUPTED, ToolError


def main(arguments: list[str] | None = None) -> int:
    """Run the server; the exit code is that of dih20.errors."""
    parser = argparse.ArgumentParser(prog="python -m dih20.serve", description=__doc__)
    parser.add_argument("--settings", type=Path, required=True)
    given = parser.parse_args(arguments)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from dih20.serve.server import serve
        from dih20.serve.settings import load_settings

        fault = asyncio.run(serve(load_settings(given.settings)))
    except ToolError as refused:
        print(f"error: {refused}", file=sys.stderr, flush=True)
        return refused.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:  # noqa: BLE001 - a fault of this program has an exit code of its own
        traceback.print_exc()
        return INTERNAL_FAULT
    return fault.exit_code if fault else 0


if __name__ == "__main__":
    sys.exit(main())
