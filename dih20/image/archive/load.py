"""Load an archive into an engine, and make sure that what stands there is what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from dih20.errors import ImageError
from dih20.image.archive.streams import BLOCK_BYTES
from dih20.image.jsonfeed import objects

if TYPE_CHECKING:
    import docker


def load_archive(
    client: docker.DockerClient,
    path: Path,
    *,
    image_id: str | None = None,
    advance: Callable[[float], None] | None = None,
) -> str:
    """Load a .tar.zst archive; give the engine's last word. With image_id, that image must exist after."""
    import zstandard

    def decompressed() -> Iterator[bytes]:
        with path.open("rb") as packed:
            reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
            before = 0
            while block := cast(BinaryIO, reader).read(BLOCK_BYTES):
                if advance:
                    advance(packed.tell() - before)
                    before = packed.tell()
                yield block

    return load_chunks(client, decompressed(), image_id=image_id)


def load_chunks(
    client: docker.DockerClient, chunks: Iterator[bytes], *, image_id: str | None = None
) -> str:
    """Load an uncompressed archive from a stream of chunks."""
    from docker.errors import APIError, DockerException, ImageNotFound

    said = ""
    try:
        for entry in _post(client, chunks):
            if problem := entry.get("error"):
                raise _load_error(str(problem))
            said = str(entry.get("stream") or said).strip()
        if image_id:
            client.images.get(image_id)
    except ImageNotFound:
        raise ImageError(
            found=f"after the load the engine holds no image {image_id} (it said: {said or 'nothing'})",
            expected="the image that the archive was made from",
            remedy="send it again complete: the archive and the image do not belong together",
        ) from None
    except APIError as problem:
        raise _load_error(str(problem.explanation or problem)) from None
    except DockerException as problem:
        raise _load_error(str(problem)) from None
    return said


def _post(client: docker.DockerClient, chunks: Iterator[bytes]) -> Iterator[dict[str, object]]:
    """Post the stream ourselves: the SDK's own reader gives up on a chunk that holds half an object."""
    api: Any = client.api
    response = api._post(api._url("/images/load"), data=chunks, params={"quiet": True}, stream=True)
    api._raise_for_status(response)
    with response:
        yield from objects(response.iter_content(8192))


def _load_error(problem: str) -> ImageError:
    layer_missing = "layer.tar" in problem and "no such file" in problem
    return ImageError(
        found=f"the engine did not take the archive: {problem}",
        expected="an archive that holds every layer the engine lacks"
        if layer_missing
        else "a loaded image",
        remedy=(
            "layers were removed from the engine since they were listed; list them and send again"
            if layer_missing
            else "look at the engine's log and free disk space, then repeat"
        ),
    )
