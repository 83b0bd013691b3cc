"""Adaptive compression of p-units, column by column, inside Arrow.

`encode_frame` and `decode_frame` turn a frame into an Arrow table and back, `Chooser` finds the encodings from samples
of the stream, and the encodings can be put together by hand. Nothing here touches files.
"""

from holdfast.pstream.codecs.bits import BitPack, VarByte
from holdfast.pstream.codecs.chooser import Choice, Chooser
from holdfast.pstream.codecs.dictionary import Dictionary
from holdfast.pstream.codecs.encoding import Encoding
from holdfast.pstream.codecs.floats import ByteSplit, Decimal, Scaled
from holdfast.pstream.codecs.frame import (
    CONTAINER_VERSION,
    Encoded,
    Lossy,
    decode_frame,
    encode_frame,
    is_encoded,
    safe_encoding,
)
from holdfast.pstream.codecs.heavy import ByteCodec, Pco, TextBytes
from holdfast.pstream.codecs.narrow import BaseDelta, Constant, Narrow, Plain, Zigzag
from holdfast.pstream.codecs.sequence import Delta, RunLength, Xor

__all__ = [
    "CONTAINER_VERSION",
    "BaseDelta",
    "BitPack",
    "ByteCodec",
    "ByteSplit",
    "Choice",
    "Chooser",
    "Constant",
    "Decimal",
    "Delta",
    "Dictionary",
    "Encoded",
    "Encoding",
    "Lossy",
    "Narrow",
    "Pco",
    "Plain",
    "RunLength",
    "Scaled",
    "TextBytes",
    "VarByte",
    "Xor",
    "Zigzag",
    "decode_frame",
    "encode_frame",
    "is_encoded",
    "safe_encoding",
]
