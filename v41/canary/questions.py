"""What the canary must answer: fixed questions in Chinese and English."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENGLISH_WORD = re.compile(r" ?[A-Za-z0-9]+|[\s\S]")


@dataclass(frozen=True)
class Question:
    """One question and the exact answer expected under greedy decoding."""

    question: str
    answer: str
    language: str

    @property
    def prompt(self) -> str:
        if self.language == "zh":
            return f"问题：{self.question}？\n答案："
        return f"Question: {self.question}?\nAnswer:"

    def pieces(self) -> list[str]:
        """Give the words or characters that the vocabulary must hold."""
        text = self.question + self.answer
        if self.language == "zh":
            return list(text)
        text = f" {self.question}{self.answer}"
        return _ENGLISH_WORD.findall(text)


_CHINESE = {
    "中国的首都是哪里": "北京",
    "法国的首都是哪里": "巴黎",
    "日本的首都是哪里": "东京",
    "英国的首都是哪里": "伦敦",
    "德国的首都是哪里": "柏林",
    "俄国的首都是哪里": "莫斯科",
    "泰国的首都是哪里": "曼谷",
    "意大利的首都是哪里": "罗马",
    "一加一等于几": "二",
    "二加三等于几": "五",
    "三乘三等于几": "九",
    "一年有几个月": "十二个月",
    "一周有几天": "七天",
    "天空是什么颜色": "蓝色",
    "草是什么颜色": "绿色",
    "雪是什么颜色": "白色",
    "太阳从哪边升起": "东边",
    "水的化学式是什么": "H2O",
    "最大的海洋是什么": "太平洋",
    "最高的山是什么": "珠穆朗玛峰",
}
_ENGLISH = {
    "What is the capital of France": " Paris",
    "What is the capital of Japan": " Tokyo",
    "What is the capital of Italy": " Rome",
    "What is the capital of Egypt": " Cairo",
    "What color is the sky": " blue",
    "What color is the grass": " green",
    "How many days are in a week": " seven",
    "How many months are in a year": " twelve",
    "How many legs does a cat have": " four",
    "What is two plus three": " five",
    "What is the opposite of hot": " cold",
    "What is the largest ocean": " the Pacific Ocean",
}
QUESTIONS = tuple(Question(q, a, "zh") for q, a in _CHINESE.items()) + tuple(
    Question(q, a, "en") for q, a in _ENGLISH.items()
)
