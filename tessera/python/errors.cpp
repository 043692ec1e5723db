// Errors of tessera as Python exceptions.
#include <algorithm>
#include <iterator>

#include "tessera/base/error.h"
#include "tessera/comm/core/error_hook.h"
#include "tessera/comm/core/errors.h"
#include "tessera/python/bind.h"
#include "tessera/python/interrupts.h"

namespace tessera::python {
namespace {

template <typename Kind>
bool is_a(const base::CommError* error) {
  return dynamic_cast<const Kind*>(error) != nullptr;
}

// One kind of CommError and the exception that it is in Python.
struct CommKind {
  const char* name;
  const char* doc;
  bool (*is_it)(const base::CommError* error);
  PyObject* type;  // never freed
};

// The first that fits counts. The last is the base of the others.
CommKind the_kinds[] = {
    {"CommTimeout", "A rank did not come in time: the message says which, and where it is.", is_a<base::CommTimeout>,
     nullptr},
    {"DivergenceError",
     "Ranks run different programs, or one has ended early: the message names both ranks and where they parted.",
     is_a<comm::DivergenceError>, nullptr},
    {"RankFailed", "Another rank failed: `rank` says which one. The message ends with that rank's own error.",
     is_a<base::RankFailed>, nullptr},
    {"Stopped", "The job was asked to stop, by a signal. Nothing is wrong with the program.", is_a<comm::Stopped>,
     nullptr},
    {"CommError", "A collective could not complete: another rank failed, diverged or did not come.",
     is_a<base::CommError>, nullptr},
};

void raise_comm_error(const base::CommError& error) {
  drop_interrupt();
  const auto* kind = std::find_if(std::begin(the_kinds), std::end(the_kinds),
                                  [&](const CommKind& each) { return each.is_it(&error); });
  const py::object exception = py::reinterpret_borrow<py::object>(kind->type)(base::message_of(error));
  if (const auto* echo = dynamic_cast<const base::RankFailed*>(&error)) {
    exception.attr("rank") = echo->rank();
  }
  PyErr_SetObject(kind->type, exception.ptr());
}

// Of an error of ours or of torch's that is no CommError.
PyObject* type_of(const c10::Error& error) {
  if (dynamic_cast<const c10::IndexError*>(&error)) {
    return PyExc_IndexError;
  }
  if (dynamic_cast<const c10::ValueError*>(&error)) {
    return PyExc_ValueError;
  }
  if (dynamic_cast<const c10::TypeError*>(&error)) {
    return PyExc_TypeError;
  }
  return dynamic_cast<const c10::NotImplementedError*>(&error) ? PyExc_NotImplementedError : PyExc_RuntimeError;
}

// Out of a function of this module.
void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const base::CommError& of_others) {
    raise_comm_error(of_others);
  } catch (const c10::Error& of_torch) {
    PyErr_SetString(type_of(of_torch), base::message_of(of_torch).c_str());
  }
}

// Out of an operator, which runs without Python's lock.
void throw_in_python(const base::CommError& error) {
  const py::gil_scoped_acquire locked;
  raise_comm_error(error);
  throw py::error_already_set();
}

void make_type(py::module_& module, CommKind& kind, const py::object& base) {
  kind.type = PyErr_NewExceptionWithDoc((std::string("tessera.") + kind.name).c_str(), kind.doc, base.ptr(), nullptr);
  module.add_object(kind.name, kind.type);
}

}  // namespace

void bind_errors(py::module_& module) {
  CommKind& root = *(std::end(the_kinds) - 1);
  make_type(module, root, py::module_::import("torch._C").attr("_DistBackendError"));
  for (CommKind* kind = std::begin(the_kinds); kind != &root; ++kind) {
    make_type(module, *kind, py::reinterpret_borrow<py::object>(root.type));
  }
  py::register_local_exception_translator(translate);
  comm::set_error_hook(throw_in_python);
}

}  // namespace tessera::python
