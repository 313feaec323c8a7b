"""The canary's tokens, in the order of their ids.

Four special tokens, 256 bytes, then whole words and single characters. Words are matched longest
first; a character that is not here becomes its UTF-8 bytes.
"""

from __future__ import annotations

BOS, EOS, PAD, IMAGE = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<image>",
)
SPECIAL = (BOS, EOS, PAD, IMAGE)
SIZE = 768

SURNAMES = tuple("王李张刘陈杨赵黄周吴徐孙胡朱林何郭马罗梁宋郑谢唐")
GIVEN_NAMES = tuple(
    "伟芳娜秀敏静丽强磊军洋勇艳杰娟涛超霞刚桂英华玉兰梅鹏鑫波斌宇浩凯健俊帆辉琳倩博婷"
)
CITIES = (
    "北京", "上海", "广州", "深圳", "成都", "重庆", "天津", "武汉", "西安", "南京", "杭州",
    "苏州", "长沙", "青岛", "大连", "厦门", "济南", "合肥", "昆明", "南宁", "贵阳", "兰州",
    "太原", "福州", "海口", "沈阳", "长春", "银川", "拉萨", "三亚", "桂林", "洛阳",
)  # fmt: skip
LIVES_IN, COMMA, ASK = "住", "，", "问："
FILLER = (
    ("今天", "昨天", "明天", "早上", "晚上", "春天", "夏天", "秋天", "冬天", "现在"),
    tuple("山河风雨花树鸟鱼月云海路门书茶船"),
    tuple("很不真也都又更最"),
    tuple("好大小高长多少新老美冷热快慢远近"),
)
_FRAMES = ("问题：", "答案：", "？", "\n", "Question:", "Answer:", "?")
_PLAIN = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,:;!()+-=*/'\"。！、"


def byte_token(value: int) -> str:
    """Give the spelling of a byte that no other token covers."""
    return f"<0x{value:02X}>"


def tokens() -> list[str]:
    """Give every token; its place is its id."""
    from v41.canary.questions import QUESTIONS

    found = dict.fromkeys((*SPECIAL, *(byte_token(value) for value in range(256))))
    for group in (SURNAMES, GIVEN_NAMES, CITIES, (LIVES_IN, COMMA, ASK), *FILLER, _FRAMES, _PLAIN):
        found |= dict.fromkeys(group)
    for question in QUESTIONS:
        found |= dict.fromkeys(question.pieces())
    names = list(found)
    assert len(names) <= SIZE, f"{len(names)} tokens, the vocabulary holds {SIZE}"
    return names + [f"<｜reserved▁{number}｜>" for number in range(SIZE - len(names))]
