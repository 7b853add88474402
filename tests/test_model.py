"""model.py against transformers.GPTNeoForCausalLM and GPT2LMHeadModel, and packed stories against
each one alone."""

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from random_models import as_transformers, random_model
from torch.utils.flop_counter import FlopCounterMode

import model as model_module
from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.huggingface import load_hf
from nanostories.kernels.attention import story_starts
from nanostories.training.config import parse_command_line

transformers = pytest.importorskip("transformers")

SHAPES = {
    "window shorter than the sequence": dict(n_layer=4, n_head=4, n_embd=32, window_size=7),
    "window longer than the sequence": dict(n_layer=2, n_head=4, n_embd=32, window_size=100),
    "odd number of layers, one head": dict(n_layer=3, n_head=1, n_embd=20, window_size=16),
    "sixteen narrow heads": dict(n_layer=2, n_head=16, n_embd=48, window_size=16),
    "window of one": dict(n_layer=2, n_head=2, n_embd=16, window_size=1),
}


def gpt2_of_both(directory):
    """Ours, and the reference that it was read from."""
    shape = {"vocab_size": 97, "n_positions": 40, "n_embd": 32, "n_layer": 2, "n_head": 4}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(0)
    config = transformers.GPT2Config(**shape, **ends, initializer_range=0.15)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(directory)
    return load_hf(directory), theirs


def sorted_gradients(model) -> torch.Tensor:
    """Of all weights: the reference has the same ones, transposed and in other tensors."""
    gradients = [parameter.grad.flatten() for parameter in model.parameters()]
    return torch.cat(gradients).sort().values


@pytest.mark.parametrize("shape", [*SHAPES.values(), "gpt2"], ids=[*SHAPES, "gpt2"])
def test_logits_loss_and_gradients_equal_the_reference(shape, tmp_path):
    if shape == "gpt2":
        ours, theirs = gpt2_of_both(tmp_path)
    else:
        ours = random_model(**shape)
        theirs = as_transformers(ours)
    tokens = torch.randint(97, (3, 40))
    targets = torch.cat([tokens[:, 1:], torch.full((3, 1), -100)], dim=1)
    logits, _ = ours(tokens)
    _, loss = ours(tokens, targets)
    reference = theirs(tokens, labels=tokens)
    torch.testing.assert_close(logits, reference.logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(loss, reference.loss, atol=1e-5, rtol=0)
    loss.backward()
    reference.loss.backward()
    wte = theirs.transformer.wte.weight
    torch.testing.assert_close(ours.wte.weight.grad, wte.grad, atol=1e-4, rtol=0)
    ours, theirs = sorted_gradients(ours), sorted_gradients(theirs)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("compiled", [False, True])
def test_every_packed_story_is_read_as_if_it_stood_alone(compiled):
    """Logits, loss and gradients. 0 comes before each story; all windows but the first begin inside
    one."""
    model = random_model(block_size=40, window_size=6).double()
    tokens = torch.randint(1, 97, (3, 40)) * (torch.rand(3, 40) > 1 / 8)
    tokens[0, 0] = 0
    tokens[1:, 0] = 5
    starts = story_starts(tokens, end_of_text=0)
    targets = torch.where(tokens > 9, tokens, -100)
    read = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    logits, _ = read(tokens, story_starts=starts)

    windows = []
    for window in tokens:
        begins = [i for i in range(1, 40) if window[i] == 0]
        assert begins
        windows.append(torch.cat([model(x[None])[0][0] for x in window.tensor_split(begins)]))
    alone = torch.stack(windows)
    torch.testing.assert_close(logits, alone)
    # where they see each other, they are read otherwise
    assert (logits - model(tokens)[0]).abs().max() > 1e-3
    _, loss = read(tokens, targets, starts)
    reference = F.cross_entropy(alone.flatten(0, 1), targets.flatten())
    gradients = torch.autograd.grad(loss, tuple(model.parameters()))
    references = torch.autograd.grad(reference, tuple(model.parameters()))
    torch.testing.assert_close(gradients, references)


def test_layers_with_the_same_window_share_their_mask(monkeypatch):
    made = []
    visibility = model_module.visibility

    def watched(q, window, *others):
        made.append(window)
        return visibility(q, window, *others)

    monkeypatch.setattr(model_module, "visibility", watched)
    random_model(n_layer=5)(torch.zeros(1, 20, dtype=torch.long))
    assert made == [40, 7]


def test_heads_that_start_as_copiers_copy():
    """With one visible token, attention gives back `gain` times what it was given, in every
    layer."""
    model = GPTNeo(GPTNeoConfig(vocab_size=97, block_size=40, n_layer=2, n_head=4, n_embd=32))
    model.init_copying(0.3)
    x = torch.randn(5, 32)
    for block in model.blocks:
        values = block.qkv(x)[:, 64:]
        torch.testing.assert_close(block.attention_out(values), 0.3 * x, atol=1e-5, rtol=1e-4)


# Width and layers of the models at https://huggingface.co/roneneldan, which have 16 heads
PUBLISHED = {
    "1m": (64, 8),
    "3m": (128, 8),
    "8m": (256, 8),
    "28m": (512, 8),
    "33m": (768, 4),
    "1l_21m": (1024, 1),
    "2l_33m": (1024, 2),
}


@pytest.mark.parametrize("name, shape", PUBLISHED.items())
def test_published_sizes(name, shape):
    """Parameter counts from the published configurations: vocabulary 50257, 2048 positions."""
    config = parse_command_line([str(ROOT / "configs" / f"ts_{name}.py")])[0]
    settings = dict(
        learning_rate=5e-4, weight_decay=0.1, beta1=0.9, beta2=0.95, block_size=512, n_head=16
    )
    assert (settings | dict(n_embd=shape[0], n_layer=shape[1])).items() <= vars(config).items()
    published = dict(
        hidden_size=shape[0],
        num_layers=shape[1],
        attention_types=[[["global"], shape[1]]],
        num_heads=16,
    )
    with torch.device("meta"):
        ours = GPTNeo(GPTNeoConfig(50257, 2048, n_embd=shape[0], n_layer=shape[1], n_head=16))
        theirs = transformers.GPTNeoForCausalLM(transformers.GPTNeoConfig(**published))
    assert ours.num_params() == theirs.num_parameters()


def test_flops_are_those_that_torch_counts():
    """Matrix products of one forward pass, counted by hand against PyTorch's own counter, attention
    written out."""
    config = GPTNeoConfig(
        vocab_size=50, block_size=16, n_layer=2, n_head=2, n_embd=8, window_size=4
    )
    model = GPTNeo(config)
    tokens = torch.randint(50, (1, 16))
    with FlopCounterMode(display=False) as counter:
        model(tokens)
    linear = 2 * 16 * (2 * 12 * 8 * 8 + 50 * 8)
    counted = counter.get_flop_counts()["Global"]
    assert counted[torch.ops.aten.mm] + counted[torch.ops.aten.addmm] == linear
    pairs = sum(min(i + 1, 16) for i in range(16)) + sum(min(i + 1, 4) for i in range(16))
    assert model.flops_per_token(16) == round(3 * (linear + 2 * 2 * 8 * pairs) / 16)
