"""Recurrent layers whose class overrides `forward` and calls PyTorch's by ``super().forward``.

What the user wrote around that call stays; the call itself is scanned. For that the module gets a
class of its own between the user's and PyTorch's, where ``super()`` finds it, made once for each
class of a user's: isinstance, ``super()``, metaclass, hooks and state_dict are as before, pickles
and copies too, and detaching gives the class back.
"""

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from bppsa_lightning._replacement import UNDER_SUPER
from bppsa_lightning.recurrent.config import STOCK
from bppsa_lightning.recurrent.layer import RecurrentChain

_USERS = "_bppsa_users_class"  # in the namespace of a class that was made here


class OverriddenChain(RecurrentChain):
    """In place of the forward that a user's class calls by ``super()``."""

    def attach(self) -> None:
        """Takes the place of PyTorch's forward, under the user's."""
        self.module.__dict__[UNDER_SUPER] = self
        if not _is_made(type(self.module)):
            self.module.__class__ = _class_under(type(self.module))

    def detach(self) -> None:
        """Gives the module its class back, unless another one has taken its place since."""
        if self.module.__dict__.get(UNDER_SUPER) is self:
            del self.module.__dict__[UNDER_SUPER]
            if _is_made(type(self.module)):
                self.module.__class__ = type(self.module).__dict__[_USERS]

    def details(self) -> list[str]:
        forward = type(self.module).forward
        code = inspect.unwrap(forward).__code__
        where = f"{forward.__qualname__}, {code.co_filename}:{code.co_firstlineno}"
        return [f"inside {where}", *super().details()]


def unsupported_class(module: nn.RNNBase) -> str | None:
    """Why a module whose class overrides `forward` cannot be scanned inside of it, or None."""
    if "forward" in module.__dict__:
        return "overrides forward"
    if _is_made(type(module)):
        return None
    if is_parametrized(module):  # which has made a class as well, and takes it away again
        return "overrides forward, and is parametrized"
    if not _calls_super(type(module)):
        return "overrides forward, and never calls super().forward"
    try:
        _class_under(type(module))
    except Exception as error:  # whatever a metaclass or __init_subclass__ says to another class
        return f"overrides forward, and cannot be derived from: {error!r}"
    return None


_MADE: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by the user's class, references


def _is_made(cls: type) -> bool:
    return _USERS in cls.__dict__


def _class_under(users: Any) -> Any:
    """The class of a user's class; one for all of its modules, for as long as there are any."""
    known = _MADE.get(users, lambda: None)()
    if known is not None:
        return known
    stock = next(cls for cls in _UNDER if issubclass(users, cls))
    namespace = {
        "__module__": users.__module__,
        "__qualname__": users.__qualname__,
        "__doc__": users.__doc__,
        "__reduce_ex__": _reduce_ex,
        _USERS: users,
    }
    made = type(users)(users.__name__, (users, _UNDER[stock]), namespace)
    _MADE[users] = ref(made)
    return made


def _under(stock: Any) -> type:
    """PyTorch's class, whose forward is the chain's where there is one."""

    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        chain = self.__dict__.get(UNDER_SUPER)
        return stock.forward(self, input, hx) if chain is None else chain(input, hx)

    return type(stock.__name__, (stock,), {"forward": forward, "__module__": __name__})


_UNDER: dict[Any, Any] = {stock: _under(stock) for stock in STOCK}


def _reduce_ex(self: Any, protocol: Any) -> Any:
    """As the user's class is pickled and copied; then of the class made here again."""
    made: Any = next(cls for cls in type(self).__mro__ if _is_made(cls))
    reduced = super(made, self).__reduce_ex__(protocol)
    if type(self) is not made or isinstance(reduced, str):
        return reduced
    function, arguments, *rest = reduced
    users = made.__dict__[_USERS]
    arguments = tuple(users if argument is made else argument for argument in arguments)
    return (_remade, (function, arguments), *rest)


def _remade(function: Any, arguments: tuple[Any, ...]) -> Any:
    module = function(*arguments)
    module.__class__ = _class_under(type(module))
    return module


def _calls_super(users: type) -> bool:
    """Whether a function of a user's class names `forward`, as ``super().forward`` does."""
    between = users.__mro__[: users.__mro__.index(nn.RNNBase)]
    functions = (f for cls in between if cls not in STOCK for f in vars(cls).values())
    return any(
        "forward" in code.co_names
        for function in functions
        if isinstance(function, FunctionType)
        for code in _codes(inspect.unwrap(function).__code__)
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
