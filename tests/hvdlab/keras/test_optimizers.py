"""LARS, LAMB and NovoGrad for Keras: `hvdlab.reference` in float64, on TensorFlow and on torch."""

import dataclasses
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

if os.environ.get("KERAS_BACKEND") != "torch":
    pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")
keras = pytest.importorskip("keras", reason="needs Keras: run `make setup`")

from keras import layers, ops  # noqa: E402

from hvdlab.keras.optimizers import LAMB, LARS, NovoGrad  # noqa: E402

BACKEND = keras.backend.backend()
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="is about TensorFlow")
ALL = [LARS, LAMB, NovoGrad]


@pytest.fixture
def float64():
    """Make Keras create float64 variables: an optimizer's learning rate is one of floatx."""
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx(before)


def in_reference(options):
    """Spell Keras' arguments as the reference does."""
    options = dict(options)
    if "epsilon" in options:
        options["eps"] = options.pop("epsilon")
    if "beta_1" in options:
        options["betas"] = options.pop("beta_1"), options.pop("beta_2")
    return options


def train(optimizer, trajectory, repeat=1):
    """Take the steps of a trajectory, each gradient `repeat` times; return the final weights."""
    variables = [
        keras.Variable(w, dtype=w.dtype.name, name=name)
        for w, name in zip(trajectory.weights, ("matrix", "vector", "zeros"), strict=True)
    ]
    for gradients, rate in zip(trajectory.gradients, trajectory.rates, strict=True):
        optimizer.learning_rate = rate
        for _ in range(repeat):
            optimizer.apply([ops.convert_to_tensor(g) for g in gradients], variables)
    return [ops.convert_to_numpy(v) for v in variables]


# --- formulas --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        pytest.param(LARS, {}, id="lars"),
        pytest.param(LARS, {"weight_decay": 0.5}, id="lars-decay"),
        pytest.param(LARS, {"weight_decay": 0.5, "momentum_form": "paper"}, id="lars-paper"),
        pytest.param(LARS, {"weight_decay": 0.5, "nesterov": True}, id="lars-nesterov"),
        pytest.param(
            LARS,
            {"weight_decay": 0.5, "nesterov": True, "momentum_form": "paper", "momentum": 0.7},
            id="lars-nesterov-paper",
        ),
        pytest.param(
            LARS, {"weight_decay": 0.5, "epsilon": 0.3, "trust_coefficient": 0.1}, id="lars-eps"
        ),
        pytest.param(LARS, {"weight_decay": 0.5, "exclude_1d": False}, id="lars-all"),
        pytest.param(LARS, {"weight_decay": 0.5, "clip": True}, id="larc"),
        pytest.param(LAMB, {}, id="lamb"),
        pytest.param(LAMB, {"weight_decay": 0.5, "exclude_1d": False}, id="lamb-all"),
        pytest.param(LAMB, {"bias_correction": False}, id="lamb-uncorrected"),
        pytest.param(LAMB, {"clip": (0.5, 1.5)}, id="lamb-clip"),
        pytest.param(LAMB, {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 0.1}, id="lamb-betas"),
        pytest.param(NovoGrad, {}, id="novograd"),
        pytest.param(NovoGrad, {"weight_decay": 0.5}, id="novograd-decay"),
        pytest.param(
            NovoGrad, {"weight_decay": 0.5, "grad_averaging": True}, id="novograd-averaging"
        ),
        pytest.param(
            NovoGrad,
            {
                "beta_1": 0.8,
                "beta_2": 0.3,
                "epsilon": 0.1,
                "weight_decay": 0.5,
                "exclude_1d": False,
            },
            id="novograd-betas-all",
        ),
    ],
)
def test_the_steps_are_those_of_the_reference(
    optimizer, options, trajectory, float64, assert_close
):
    expected = in_reference(options)
    if expected.get("clip") is True:
        expected["trust_coefficient"] = 0.02  # the default of LARC
    ours = train(optimizer(**options), trajectory)
    theirs = trajectory.reference(optimizer.__name__.lower(), **expected)
    assert_close(ours, theirs, f"Keras on {BACKEND} - reference")


@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
def test_lamb_without_decay_is_that_of_keras(epsilon, trajectory, float64, assert_close):
    # Betas that float32 holds exactly: on TensorFlow, Keras' Lamb rounds them to float32.
    same = {"beta_1": 0.875, "beta_2": 0.96875, "epsilon": epsilon}
    ours = train(LAMB(weight_decay=0.0, exclude_1d=False, **same), trajectory)
    theirs = train(keras.optimizers.Lamb(**same), trajectory)
    assert_close(ours, theirs, f"LAMB - keras Lamb on {BACKEND}")


@pytest.mark.parametrize("optimizer", ALL)
def test_accumulated_gradients_are_one_step(optimizer, trajectory, float64, assert_close):
    ours = train(optimizer(weight_decay=0.5, gradient_accumulation_steps=2), trajectory, repeat=2)
    theirs = trajectory.reference(optimizer.__name__.lower(), weight_decay=0.5)
    assert_close(ours, theirs, f"Keras on {BACKEND}, accumulated - reference")


# --- who is decayed and adapted ---------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ALL)
def test_who_is_excluded_from_decay_is_not_decayed(optimizer, trajectory, float64, assert_close):
    ours = optimizer(weight_decay=0.5)
    ours.exclude_from_weight_decay(var_names=["matrix"])
    name = optimizer.__name__.lower()
    plain = trajectory.reference(name, weight_decay=0.0)
    decayed = trajectory.reference(name, weight_decay=0.5)
    assert np.abs(plain[0] - decayed[0]).max() > 1e-3
    expected = [plain[0], *decayed[1:]]
    assert_close(train(ours, trajectory), expected, f"Keras on {BACKEND}, excluded - reference")


@pytest.mark.parametrize("optimizer", [LARS, LAMB])
def test_who_is_excluded_from_adaptation_is_not(optimizer, trajectory, float64, assert_close):
    ours = optimizer(weight_decay=0.0)
    ours.exclude_from_adaptation(var_names=["mat", "zer"])
    # The reference does not adapt 1-D tensors.
    flat = dataclasses.replace(
        trajectory,
        weights=[w.ravel() for w in trajectory.weights],
        gradients=[[g.ravel() for g in gradients] for gradients in trajectory.gradients],
    )
    theirs = flat.reference(optimizer.__name__.lower(), weight_decay=0.0)
    ours = [w.ravel() for w in train(ours, trajectory)]
    assert_close(ours, theirs, f"Keras on {BACKEND}, not adapted - reference")


@pytest.mark.parametrize("name", ["^kernel$", "kernel$", "first/kernel", "first"])
def test_names_of_layers_and_whole_names_are_found_on_every_backend(name):
    """In a model TensorFlow's own variable of `first/kernel` is called `first/kernel:0`."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="first")])
    kernel = model.layers[0].kernel
    optimizer = LARS(0.1, momentum=0.0, weight_decay=0.5, trust_coefficient=0.7)
    before = ops.convert_to_numpy(kernel)
    whole = name == "^kernel$"  # Keras searches names for decay; we search paths for adaptation
    if whole:
        optimizer.exclude_from_weight_decay(var_names=[name])
    else:
        optimizer.exclude_from_adaptation(var_names=[name])
    gradient = np.array([[0.6, 0.0], [0.0, 0.8]], "float32")
    optimizer.apply([ops.convert_to_tensor(gradient)], [kernel])
    local = 0.7 * np.linalg.norm(before) if whole else 1.0
    expected = before - 0.1 * local * (gradient + (0.0 if whole else 0.5) * before)
    np.testing.assert_allclose(ops.convert_to_numpy(kernel), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("decays", "adapts"), [(True, False), (False, True), (False, False), (True, True)]
)
def test_decay_and_adaptation_are_chosen_apart(decays, adapts, float64):
    w, g = np.array([[3.0, 4.0]]), np.array([[0.6, 0.8]])  # norms 5 and 1
    variable = keras.Variable(w)
    optimizer = LARS(0.1, momentum=0.0, weight_decay=0.5, trust_coefficient=0.7)
    if not decays:
        optimizer.exclude_from_weight_decay(var_list=[variable])
    if not adapts:
        optimizer.exclude_from_adaptation(var_list=[variable])
    optimizer.apply([ops.convert_to_tensor(g)], [variable])
    decay = 0.5 if decays else 0.0
    local = 0.7 * 5 / (1 + decay * 5) if adapts else 1.0
    expected = w - 0.1 * local * (g + decay * w)
    np.testing.assert_allclose(ops.convert_to_numpy(variable), expected, rtol=0, atol=1e-15)


# --- precision and gradients out of the ordinary ----------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("optimizer", "rate", "options"),
    [
        (LARS, 1 / 16, {"weight_decay": 1 / 4, "trust_coefficient": 1.0}),
        (LAMB, 1 / 16, {"weight_decay": 1 / 4}),
        (NovoGrad, 16.0, {"weight_decay": 1 / 1024}),
    ],
)
def test_half_precision_keeps_its_norms_in_float32(optimizer, rate, options, dtype, trajectory):
    rng = np.random.default_rng(0)
    w = rng.choice([0.5, 1.0, 1.5], size=(300, 300))
    g = rng.choice([-2.0, 1.0, 3.0], size=(300, 300))  # the sum of squares is over float16's 65504
    # A gradient of zero first: NovoGrad's epsilon is zero in float16, and would make it NaN.
    gradients, rates = [[np.zeros_like(g)], [g], [g]], [rate] * 3
    steps = dataclasses.replace(trajectory, weights=[w], gradients=gradients, rates=rates)
    (expected,) = steps.reference(optimizer.__name__.lower(), **options)
    assert np.abs(expected).max() < 2 and np.abs(expected - w).max() > 0.2

    variable = keras.Variable(w, dtype=dtype)
    ours = optimizer(rate, **options)
    for (gradient,) in gradients:
        ours.apply([ops.cast(gradient, dtype)], [variable])
    error = np.abs(ops.convert_to_numpy(ops.cast(variable, "float32")) - expected)
    # Three roundings of weights below 2, by half a spacing each, and less by those of the moments.
    spacing = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    assert error.max() <= 2 * spacing


@pytest.mark.parametrize("optimizer", ALL)
def test_a_first_gradient_of_zero_moves_nothing(optimizer):
    variable = keras.Variable([[1.0, 2.0]])
    optimizer(0.1, weight_decay=0.0).apply([ops.zeros((1, 2))], [variable])
    np.testing.assert_array_equal(ops.convert_to_numpy(variable), [[1.0, 2.0]])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("optimizer", ALL)
def test_gradients_that_are_not_finite_are_not_hidden(optimizer, bad):
    variable = keras.Variable(np.ones((2, 2)), dtype="float32")
    optimizer().apply([ops.convert_to_tensor([[bad, 1.0], [1.0, 1.0]])], [variable])
    assert np.isnan(ops.convert_to_numpy(variable)[0, 0])


@on_tensorflow
@pytest.mark.parametrize("optimizer", ALL)
def test_variables_of_tensorflows_own_take_steps(optimizer):
    """As in a loop without a model."""
    import tensorflow as tf

    plain = tf.Variable([1.0, 2.0])
    optimizer(0.1).apply_gradients([(tf.constant([0.5, 0.5]), plain)])
    assert plain.numpy()[0] < 1


@on_tensorflow
@pytest.mark.parametrize("optimizer", ALL)
def test_sparse_gradients_are_summed_row_by_row(optimizer):
    import tensorflow as tf

    slices = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([2, 2]), (4, 2))
    dense = tf.constant([[0.0, 0.0], [0.0, 0.0], [4.0, 6.0], [0.0, 0.0]])
    after = []
    for gradient in (slices, dense):
        variable = keras.Variable(np.arange(8.0).reshape(4, 2), dtype="float32")
        ours = optimizer(0.1, weight_decay=0.1)
        for _ in range(2):
            ours.apply([gradient], [variable])
        after.append(ops.convert_to_numpy(variable))
    np.testing.assert_array_equal(*after)


# --- life in Keras ----------------------------------------------------------------------------------

X, Y = np.random.default_rng(1).normal(size=(2, 32, 4)).astype("float32")


def compiled(optimizer, **options):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(6, activation="tanh"), layers.Dense(4)]
    )
    model.compile(optimizer, "mse", **options)
    return model


def fit(model):
    model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.mark.parametrize(
    "optimizer",
    [
        LARS(0.5, 0.8, 0.1, 0.02, 1e-3, True, True, "paper", False, "a", clipnorm=1.0),
        LAMB(0.5, 0.8, 0.7, 1e-3, 0.1, False, (0, 10.0), False, "b", use_ema=True),
        NovoGrad(0.5, 0.8, 0.7, 1e-3, 0.1, True, False, "c", gradient_accumulation_steps=2),
    ],
)
def test_the_config_holds_every_argument(optimizer):
    config, cls = optimizer.get_config(), type(optimizer)
    assert inspect.signature(cls).parameters.keys() - {"kwargs"} <= config.keys()
    default = cls().get_config()
    unset = {name for name in config if config[name] == default[name]}
    # Left to Keras, which tests them: all but the one that each of the three above was given.
    theirs = {"clipnorm", "global_clipnorm", "clipvalue", "use_ema", "ema_momentum"}
    theirs |= {"ema_overwrite_frequency", "loss_scale_factor", "gradient_accumulation_steps"}
    assert unset < theirs and len(unset) == len(theirs) - 1
    assert optimizer.weight_decay is None  # Keras' own, which would be a second one

    written = json.loads(json.dumps(keras.optimizers.serialize(optimizer)))
    assert written["registered_name"] == f"hvdlab>{cls.__name__}"
    again = keras.optimizers.deserialize(written)
    assert type(again) is cls and again.get_config() == config


@pytest.mark.parametrize("optimizer", ALL)
def test_building_again_keeps_the_state(optimizer):
    variable, ours = keras.Variable([[1.0, 2.0]]), optimizer(0.1)
    ours.apply([ops.ones((1, 2))], [variable])
    state = ours.variables
    ours.build([variable])
    assert [id(v) for v in ours.variables] == [id(v) for v in state]


@pytest.mark.parametrize("optimizer", ALL)
def test_a_saved_model_trains_on_as_if_it_had_not_stopped(optimizer, tmp_path):
    model = compiled(optimizer(0.1, weight_decay=0.1))
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(fit(loaded), fit(model))


@on_tensorflow
@pytest.mark.parametrize("optimizer", ALL)
def test_a_graph_and_xla_take_the_same_steps(optimizer):
    make = {LARS: lambda: LARS(0.1, clip=True, nesterov=True), LAMB: lambda: LAMB(0.1)}.get(
        optimizer, lambda: NovoGrad(0.1)
    )
    eager = fit(compiled(make(), run_eagerly=True))
    graph = fit(compiled(make(), jit_compile=False))
    xla = fit(compiled(make(), jit_compile=True))
    assert np.abs(eager - fit(compiled("sgd", jit_compile=False))).max() > 1e-3
    np.testing.assert_allclose(graph, eager, rtol=0, atol=1e-6)
    np.testing.assert_allclose(xla, eager, rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimizer", ALL)
def test_schedules_and_callables_set_the_rate(optimizer, float64):
    class Falling(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.3 / (1 + ops.cast(step, "float64"))

    def two_steps(ours, second_rate=None):
        variable = keras.Variable([[1.0, 1.0]], dtype="float64")
        gradient = ops.convert_to_tensor([[1.0, 2.0]], "float64")
        ours.apply([gradient], [variable])
        if second_rate:
            ours.learning_rate = second_rate
        ours.apply([gradient], [variable])
        return ops.convert_to_numpy(variable)

    constant, falling = two_steps(optimizer(0.3)), two_steps(optimizer(0.3), second_rate=0.15)
    np.testing.assert_array_equal(two_steps(optimizer(lambda: 0.3)), constant)
    np.testing.assert_array_equal(two_steps(optimizer(Falling())), falling)
    assert (constant != falling).all()


@pytest.mark.parametrize(
    ("optimizer", "options", "sentence"),
    [
        (LARS, {"learning_rate": -1.0}, "learning_rate must be a number of at least 0."),
        (LARS, {"momentum": 1.0}, "momentum must be a number of at least 0 and below 1."),
        (LARS, {"momentum": float("nan")}, "momentum must be a number"),
        (LARS, {"weight_decay": None}, "weight_decay must be a number of at least 0."),
        (LARS, {"trust_coefficient": -1}, "trust_coefficient must be a number of at least 0."),
        (LARS, {"epsilon": "small"}, "epsilon must be a number of at least 0."),
        (LARS, {"clip": 0.5}, "clip must be True or False."),
        (LARS, {"nesterov": None}, "nesterov must be True or False."),
        (LARS, {"momentum_form": "tf"}, "momentum_form must be 'torch' or 'paper'."),
        (LAMB, {"beta_1": -0.1}, "beta_1 must be a number of at least 0 and below 1."),
        (LAMB, {"beta_2": 1}, "beta_2 must be a number of at least 0 and below 1."),
        (LAMB, {"epsilon": -1e-6}, "epsilon must be a number of at least 0."),
        (LAMB, {"bias_correction": 2}, "bias_correction must be True or False."),
        (LAMB, {"clip": (2, 1)}, "clip must be None or (low, high) with 0 <= low <= high."),
        (LAMB, {"clip": 10}, "clip must be None or (low, high)"),
        (LAMB, {"exclude_1d": "bias"}, "exclude_1d must be True or False."),
        (NovoGrad, {"weight_decay": True}, "weight_decay must be a number"),
        (NovoGrad, {"epsilon": 0}, "epsilon must be above 0"),
        (NovoGrad, {"grad_averaging": 0.5}, "grad_averaging must be True or False."),
        (NovoGrad, {"weight_decay": -1}, "weight_decay must be a number of at least 0."),
    ],
)
def test_a_bad_argument_is_told_in_one_sentence(optimizer, options, sentence):
    with pytest.raises(ValueError) as raised:
        optimizer(**options)
    message, ((name, value),) = str(raised.value), options.items()
    assert message.startswith(sentence), message
    assert message.endswith(f"Received: {name}={value!r}"), message


# --- other processes --------------------------------------------------------------------------------


WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", sys.argv[1]]))
"""


@on_tensorflow
def test_all_of_this_holds_on_torch():
    pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, __file__],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "Keras on torch - reference" in done.stdout


@on_tensorflow
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", ["tensorflow", pytest.param("torch", marks=pytest.mark.thorough)]
)
def test_two_ranks_take_the_steps_of_one_process(run_ranks, backend):
    pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")
    pytest.importorskip(backend, reason="needs PyTorch: run `make setup`")
    code, output = run_ranks("optimizers.py", KERAS_BACKEND=backend)
    assert code == 0, output[-4000:]
