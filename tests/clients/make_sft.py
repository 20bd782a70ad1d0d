"""Write what `trl sft` needs: a tiny model, its tokenizer, and sentences. OUT is the folder."""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = [f"w{n}" for n in range(200)]

out = Path(sys.argv[1])
vocabulary = {word: n for n, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
config = LlamaConfig(
    vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0,
    eos_token_id=1, bos_token_id=None,
)  # fmt: skip
LlamaForCausalLM(config).save_pretrained(out / "model")
tokenizer.save_pretrained(out / "model")
(out / "data").mkdir(exist_ok=True)
with open(out / "data" / "train.jsonl", "w") as file:
    for n in range(4000):
        text = " ".join(WORDS[(n * 7 + k * k) % 200] for k in range(40))
        file.write(json.dumps({"text": text}) + "\n")
