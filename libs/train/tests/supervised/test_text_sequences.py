"""Text as sequences of tokens: each token is predicted once, the order follows from the seed, and a corpus is never
held whole."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.errors import ConfigError
from ale.session.tokenizer import ChatTokenizer, byte_tokenizer, train_tokenizer
from ale_train.supervised.text_sequences import (
    PIECE_CHARS,
    WINDOW,
    read_pieces,
    sequences_once,
    stream_sequences,
    text_files,
)

BYTES = byte_tokenizer()
STOP = BYTES.stop_token_ids[0]


def written(folder: Path, *texts: str) -> list[Path]:
    """A file a text."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{i}.txt" for i in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return files


def stream(tokenizer: ChatTokenizer, *texts: str) -> list[int]:
    """The tokens as one would join them by hand."""
    out: list[int] = []
    for text in texts:
        if text:
            out += [*tokenizer.encode(text), *tokenizer.stop_token_ids[:1]]
    return out


def predicted(sequence: np.ndarray) -> list[int]:
    return [int(token) for token in sequence[1:]]


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=40), min_size=1, max_size=5),
    length=st.integers(2, 30),
)
def test_every_token_but_the_first_is_predicted_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], length: int
) -> None:
    files = written(tmp_path_factory.mktemp("texts"), *texts)
    whole = stream(BYTES, *texts)
    found = list(sequences_once(files, BYTES, length))
    assert [token for sequence in found for token in predicted(sequence)] == whole[1:]
    assert all(len(sequence) == length for sequence in found[:-1])
    assert all(2 <= len(sequence) <= length for sequence in found)
    for sequence, following in itertools.pairwise(found):
        assert sequence[-1] == following[0], "the last token of one is the context of the next"


def test_an_epoch_has_every_token_once_and_its_end_begins_the_next(tmp_path: Path) -> None:
    texts = [f"document {i} " * 5 for i in range(7)]
    files = written(tmp_path, *texts)
    whole, length = Counter(stream(BYTES, *texts)), 16
    each = (sum(whole.values()) - 1) // (length - 1)
    one = list(itertools.takewhile(lambda p: p.epoch == 1, stream_sequences(files, BYTES, length, seed=3)))
    assert len(one) == each
    many = list(itertools.islice(stream_sequences(files, BYTES, length, seed=3), each * 3))
    found = Counter(token for p in many for token in predicted(p.token_ids))
    for token, count in whole.items():
        assert abs(found[token] - 3 * count) <= 2 * length, "three epochs hold each token three times, but for the ends"
    assert {p.epoch for p in many} <= {1, 2, 3}


def test_the_order_follows_from_the_seed_and_differs_between_seeds_and_epochs(tmp_path: Path) -> None:
    files = written(tmp_path, *(f"{i} is the number of this document" for i in range(30)))

    def taken(seed: int) -> list[list[int]]:
        return [p.token_ids.tolist() for p in itertools.islice(stream_sequences(files, BYTES, 34, seed), 60)]

    assert taken(1) == taken(1)
    assert taken(1) != taken(2)
    assert taken(1)[:30] != taken(1)[30:60]


def test_the_lines_of_jsonl_and_the_whole_of_other_files_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": "tw\\no", "id": 7}\n{"text": ""}\n')
    (tmp_path / "b.md").write_text("# three\n\nmore of it\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "c.txt").write_text("four")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    files = text_files([tmp_path, tmp_path / "b.md"], "cpt.heldout")
    assert [f.name for f in files] == ["a.jsonl", "b.md", "c.txt"], "a file that is named twice is read once"
    (whole,) = sequences_once(files, BYTES, 1000)
    assert whole.tolist() == stream(BYTES, "one", "tw\no", "# three\n\nmore of it\n", "four")


@pytest.mark.parametrize(
    "text", ["word and word\n" * 20_000, "unbroken" * 40_000, "broken by blanks " * 20_000, "ü" * 70_000]
)
def test_a_long_file_comes_in_pieces_that_make_the_whole_and_end_where_lines_or_words_do(
    tmp_path: Path, text: str
) -> None:
    (file,) = written(tmp_path, text)
    found = list(read_pieces(file))
    assert "".join(piece for piece, _ in found) == text
    assert [ends for _, ends in found] == [False] * (len(found) - 1) + [True]
    assert len(found) > 1
    assert max(len(piece) for piece, _ in found) <= 2 * PIECE_CHARS
    if " " in text:
        assert all(piece[-1].isspace() for piece, ends in found if not ends)


def test_pieces_are_tokenized_as_the_whole_would_be_where_tokens_do_not_cross_lines(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["def f(x):\n    return x + 1\n"] * 9, 300)
    text = "def f(x):return x\n" * 8_000
    (file,) = written(tmp_path, text)
    assert len(list(read_pieces(file))) > 1
    found = [t for s in sequences_once([file], tokenizer, 512) for t in predicted(s)]
    assert tokenizer.decode(found[:-1]) == text[len(tokenizer.decode(tokenizer.encode(text)[:1])) :]


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_a_large_corpus_is_streamed(tmp_path: Path, suffix: str) -> None:
    file, line = tmp_path / f"large{suffix}", "some words of a long line that says little " * 20
    with file.open("w") as out:
        for _ in range(80_000):
            out.write((json.dumps({"text": line}) if suffix == ".jsonl" else line) + "\n")
    assert file.stat().st_size > 60 << 20
    tracemalloc.start()
    try:
        first = list(itertools.islice(stream_sequences([file], BYTES, 1024, seed=1), WINDOW + 5))
        read = sum(len(piece) for piece, _ in read_pieces(file))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(first) == WINDOW + 5
    assert read >= len(line) * 80_000, "all of it was read"
    assert peak < 24 << 20, f"{peak / 2**20:.0f} MiB at once of a file of {file.stat().st_size / 2**20:.0f}"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"txt": 1}\n', "a.jsonl, line 2: there is no key 'text' with a text"),
        ("a.jsonl", b'{"text": 5}\n', "line 1: there is no key 'text' with a text"),
        ("a.jsonl", b"[1]\n", "line 1: there is no key 'text'"),
        ("a.jsonl", b"nonsense\n", "line 1: this is not JSON"),
        ("a.txt", b"gr\xfcn", "a.txt is not text in UTF-8"),
        ("a.txt", b"", "There is no text in"),
        ("a.jsonl", b'{"text": ""}\n', "There is no text in"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        list(itertools.islice(stream_sequences([tmp_path / name], BYTES, 8, seed=1), 3))


def test_paths_without_text_are_refused_by_their_key(tmp_path: Path) -> None:
    for path, sentence in (
        (tmp_path / "nowhere", "cpt.stages.0.data: there is no file or folder"),
        (tmp_path, "holds no file of text"),
        (written(tmp_path / "in", "x")[0].rename(tmp_path / "x.bin"), "is no file of text that can be read"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            text_files([path], "cpt.stages.0.data")


def test_a_single_token_repeats_until_a_sequence_is_full(tmp_path: Path) -> None:
    files = written(tmp_path, "x")
    first, second = itertools.islice(stream_sequences(files, BYTES, 7, seed=1), 2)
    x = BYTES.encode("x")[0]
    assert first.token_ids.tolist() == [x, STOP, x, STOP, x, STOP, x]
    assert second.token_ids.tolist()[0] == x
    assert (first.epoch, second.epoch) == (4, 7)


def test_documents_begin_and_end_as_the_tokenizer_writes_a_text(tmp_path: Path) -> None:
    from tokenizers import processors

    around = byte_tokenizer()
    start, end = around.encode("<tool_call>")[0], around.stop_token_ids[0]
    around._fast.post_processor = processors.TemplateProcessing(
        single="<tool_call> $A", special_tokens=[("<tool_call>", start)]
    )
    assert around.around_text == ((start,), (end,))
    found = np.concatenate(list(sequences_once(written(tmp_path, "one", "two"), around, 64))).tolist()
    assert found == [start, *around.encode("one"), end, start, *around.encode("two"), end]
    assert byte_tokenizer().around_text == ((), (end,))
