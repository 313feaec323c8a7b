"""What the engine is asked: the prompt's ids, within what the model takes."""

from __future__ import annotations

from typing import Any

from dih20.serve.api.errors import ApiError, invalid
from dih20.serve.api.params import Asked
from dih20.serve.service import Service
from dih20.serve.text.chat import TemplateRefused
from dih20.serve.text.tokenising import Busy

_LONG_TEXT = 4096  # characters; longer prompts are tokenised beside the event loop


class Prompting:
    """One request on its way to the engine."""

    def __init__(self, service: Service, asked: Asked) -> None:
        self._service, self._asked = service, asked
        self._where = "messages" if asked.chat else "prompt"
        limit = service.settings.limits.max_model_len or 1 << 62
        self._longest = min(int(service.info["max_model_len"]), limit)

    async def engine_values(self) -> dict[str, Any]:
        """Give the fields of EngineRequest; raises ApiError for what does not fit the model."""
        asked, prompt = self._asked, await self._prompt()
        if not prompt:
            raise invalid(f"{self._where} has no tokens", self._where)
        room = self._longest - len(prompt)
        if room < 1:
            raise self._too_long(str(len(prompt)))
        if (asked.max_tokens or 1) > room:
            raise invalid(
                f"the model takes {self._longest} tokens: {len(prompt)} of {self._where} and "
                f"{asked.max_tokens} of the answer do not fit",
                "max_tokens",
                "context_length_exceeded",
            )
        vocab = min(self._service.info["vocab_size"], len(self._service.codec.table))
        if not 0 <= min(prompt) <= max(prompt) < vocab:
            raise invalid(f"token ids go from 0 to {vocab - 1}", self._where, "out_of_range")
        return {
            "prompt": prompt,
            "max_tokens": self._max_tokens(room),
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "seed": asked.seed,
            "logprobs": asked.logprobs,
            "ignore_eos": asked.ignore_eos,
        }

    def _max_tokens(self, room: int) -> int:
        """Give the bound of the answer; log-probs that are not streamed are kept, so bounded too."""
        asked, limits = self._asked, self._service.settings.limits
        most = asked.max_tokens or min(limits.default_max_tokens, room)
        if asked.logprobs is not None and not asked.stream:
            kept = limits.kept_log_probs // (1 + asked.logprobs)
            if most > kept:
                raise invalid(
                    f"{most} tokens with logprobs are kept only when streamed; at most {kept} otherwise",
                    "max_tokens",
                    "out_of_range",
                )
        return most

    async def _prompt(self) -> list[int]:
        """Give the prompt's ids; long texts are worked on beside the event loop."""
        asked = self._asked
        if isinstance(asked.prompt, list):
            return asked.prompt
        if asked.chat and self._service.codec.chat is None:
            raise invalid("this checkpoint has no chat template", code="no_chat_template")
        size = len(asked.prompt) + sum(len(each["content"]) + 64 for each in asked.messages)
        try:
            if size > _LONG_TEXT:
                return await self._service.tokenising.run(self._encode)
            return self._encode()
        except TemplateRefused as fault:
            raise invalid(f"the chat template refused: {fault}", "messages") from fault
        except Busy:
            raise ApiError(
                429, "enough long prompts wait already", code="queue_full",
                headers={"retry-after": "5"},
            ) from None  # fmt: skip

    def _encode(self) -> list[int]:
        asked, codec = self._asked, self._service.codec
        assert isinstance(asked.prompt, str)
        text = asked.prompt
        if asked.chat:
            assert codec.chat is not None
            text = codec.chat.render(asked.messages)
        fewest = codec.fewest_tokens(text)
        if fewest > self._longest:
            raise self._too_long(f"at least {fewest}")
        return codec.encode(text, special=not asked.chat)

    def _too_long(self, tokens: str) -> ApiError:
        return invalid(
            f"the model takes {self._longest} tokens; the {self._where} of {tokens} does not fit",
            self._where,
            "context_length_exceeded",
        )
