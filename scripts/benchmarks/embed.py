"""Embedding pages: batches filled by visual tokens against a plain loop, one page at a time and batches filled by count.

Needs torch (``pip install "vrag[models]"``). Without ``--model`` a model of the real architecture is built with random weights, of
the size that ``--size`` names: speed does not depend on what the weights are.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.benchmarks._one_by_one import OneByOne

#: hidden, intermediate, layers, heads, key/value heads, vision: hidden, intermediate, depth, heads
SIZES = {
    "tiny": (128, 256, 4, 4, 2, 128, 256, 4, 4),
    "small": (512, 1536, 8, 8, 4, 384, 1024, 8, 6),
    "2b": (2048, 6144, 28, 16, 8, 1024, 4096, 24, 16),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="a checkpoint (default: random weights)")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="size of the model with random weights")
    parser.add_argument("--images", type=Path, help="a folder of page images (default: drawn ones of mixed sizes)")
    parser.add_argument("--count", type=int, default=32, help="pages to embed")
    parser.add_argument("--image-tokens", type=int, default=256, help="visual tokens of a page at most")
    parser.add_argument("--batch-tokens", type=int, help="tokens of a batch (default: the model's)")
    parser.add_argument("--batch-count", type=int, default=8, help="pages of a batch filled by count")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device")


def run(args: argparse.Namespace) -> dict[str, Any]:
    from search_engine.models.registry import load_model
    from search_engine.models.visual import Content
    from vrag.errors import ConfigError

    try:
        import torch
    except ModuleNotFoundError as error:
        raise ConfigError('This benchmark needs torch: pip install "vrag[models]".') from error
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = args.model or str(_random_checkpoint(folder / f"random-{args.size}", args.size))
        model: Any = load_model(
            path,
            dtype=args.dtype,
            devices=args.device,
            image_tokens=(4, args.image_tokens),
            batch_tokens=args.batch_tokens,
        )
        files = _pages(args.images, folder, args.count)
        contents = [Content(image=file) for file in files]
        texts = [Content(f"What does page {i} say about revenue? " * (1 + i % 9)) for i in range(args.count)]
        replica = model._replicas[0]
        loop = OneByOne(path, replica.model.dtype, replica.device, (4, args.image_tokens))
        loops: dict[str, Callable[[Sequence[Content]], Any]] = {
            "pages": lambda given: [loop.image(item.image) for item in given],
            "texts": lambda given: [loop.text(item.text) for item in given],
        }
        rows = []
        for kind, items in (("pages", contents), ("texts", texts)):
            tokens = sum(model.prepare(item).visual_tokens for item in items)
            mine = model.embed(items[:4]).vectors  # the first call of each shape is slower
            differs = max(
                float(abs(one - other).max()) for one, other in zip(loops[kind](items[:4]), mine, strict=True)
            )
            ways: dict[str, Callable[[Sequence[Content]], Any]] = {
                "a plain loop": loops[kind],
                "one by one": lambda given: [model.embed([item]) for item in given],
                f"{args.batch_count} at a time": lambda given: [
                    _unsorted(model, given[i : i + args.batch_count]) for i in range(0, len(given), args.batch_count)
                ],
                f"{model.batch_tokens} tokens at a time": model.embed,
            }
            for way, embed in ways.items():
                seconds, worked = _seconds(embed, items, torch)
                rows.append(
                    {
                        "what": kind,
                        "batches": way,
                        "items": len(items),
                        "items/s": len(items) / seconds,
                        "visual tokens/s": tokens / seconds,
                        "items/CPU s": len(items) / worked,
                        "max |difference|": f"{differs:.1e}",
                    }
                )
        for row in rows:
            base = next(r for r in rows if r["what"] == row["what"])
            row["against the loop"] = row["items/s"] / base["items/s"]
        return {
            "model": model.name,
            "device": str(model._replicas[0].device),
            "torch": torch.__version__,
            "dtype": str(replica.model.dtype),
            "threads": torch.get_num_threads(),
            "image_tokens": args.image_tokens,
            "rows": rows,
        }


def _unsorted(model: Any, items: Sequence[Any]) -> Any:
    """One batch in the order given, padded to its longest: what filling by count comes to."""
    before = model.batch_tokens
    model.batch_tokens = max(len(model.prepare(item).ids) for item in items) * len(items)
    try:
        return model.embed(items)
    finally:
        model.batch_tokens = before


def _seconds(embed: Callable[[Sequence[Any]], Any], items: Sequence[Any], torch: Any) -> tuple[float, float]:
    """By the clock, and what this process worked: on a machine that others use the second says more of a CPU."""
    started, working = time.perf_counter(), time.process_time()
    embed(items)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started, time.process_time() - working


def _pages(folder: Path | None, scratch: Path, count: int) -> list[Path]:
    if folder is not None:
        found = sorted(p for p in folder.iterdir() if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
        return (found * (count // max(1, len(found)) + 1))[:count]
    return list(_drawn(scratch / "pages", count))


def _drawn(folder: Path, count: int) -> Iterator[Path]:
    """Pages, slides and small figures in turn, with noise where print would be."""
    import numpy as np
    from PIL import Image

    folder.mkdir()
    shapes = [(1240, 1754), (1280, 720), (480, 360), (1024, 768)]
    for number in range(count):
        width, height = shapes[number % len(shapes)]
        grain = np.random.default_rng(number).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
        path = folder / f"{number}.jpg"
        Image.fromarray(grain).resize((width, height)).save(path, quality=85)
        yield path


def _random_checkpoint(path: Path, size: str) -> Path:
    """A Qwen3-VL of the given size with random weights and a vocabulary of bytes, as a checkpoint on disk."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    special = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|image_pad|>",
        "<|video_pad|>",
    ]
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    ids = {token: tokenizer.token_to_id(token) for token in special}
    hidden, inner, layers, heads, pairs, seen, seen_inner, depth, seen_heads = SIZES[size]
    text = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": pairs,
        "head_dim": hidden // heads,
        "vocab_size": 151_936 if size == "2b" else 512,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32_768,
        "rope_theta": 5e6,
        "rope_scaling": {
            "rope_type": "default",
            "mrope_interleaved": True,
            "mrope_section": [
                hidden // heads // 2 - 2 * (hidden // heads // 6),
                hidden // heads // 6,
                hidden // heads // 6,
            ],
        },
    }
    vision = {
        "depth": depth,
        "hidden_size": seen,
        "intermediate_size": seen_inner,
        "num_heads": seen_heads,
        "out_hidden_size": hidden,
        "patch_size": 16,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [0, depth // 2],
    }
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    Qwen3VLForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
        "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
        "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return path
