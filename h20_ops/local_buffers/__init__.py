"""DeepEP's buffers for an engine that has one GPU: no communicator, no NCCL window, no NIC.

With one rank nothing travels: tokens are only regrouped by expert, Engram rows only looked up. These classes
have the methods and keyword names with which the engine calls `EPBuffer` and `EngramBuffer` of DeepEP 2.5.0, in
plain torch, on one stream, without reading the device. The real `deep_ep` stays the package of that name and
serves groups of more than one rank.
"""

from __future__ import annotations

from h20_ops.local_buffers.engram import LocalEngramBuffer
from h20_ops.local_buffers.expert import ExpertRows, LocalEPBuffer

__all__ = ["ExpertRows", "LocalEPBuffer", "LocalEngramBuffer"]
