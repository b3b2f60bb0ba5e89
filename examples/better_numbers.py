"""Better numbers out of a model that you already have: the median and an interval instead of the greedy answer, no training."""

import sys

from transformers import AutoModelForCausalLM

import numerate as nm
from numerate.tokenizers import load_tokenizer, packaged_file

try:
    file = packaged_file("smollm2")  # SmolLM2-135M-Instruct as a GGUF file; take any model of transformers instead
except ModuleNotFoundError as missing:
    sys.exit(f"Nothing to run: {missing}")
tokenizer = load_tokenizer("smollm2")
model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)

known = "0.52 carat, Premium: $1111\n0.25 carat, Premium: $740\n1 carat, Ideal: $4032\n1.01 carat, Fair: $6353\n"
prices = {"0.71 carat, Premium: $": 2322, "0.7 carat, Ideal: $": 2326, "0.32 carat, Ideal: $": 720}
prompts = [known + diamond for diamond in prices]
form = nm.decode.NumberGrammar(sign=False, digits=(1, 5), decimals=0)  # optional; the fewer digits, the faster

medians = nm.decode.number(model, prompts, tokenizer, "median", grammar=form)
intervals = nm.decode.interval(model, prompts, tokenizer, 0.9, grammar=form)
for prompt, price, median, interval in zip(prompts, prices.values(), medians, intervals, strict=True):
    inputs = tokenizer(prompt, return_tensors="pt")
    greedy = model.generate(**inputs, max_new_tokens=5, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    print(f"price {price}: greedy {tokenizer.decode(greedy)!r}, median {median}, 90 % in {interval}")
