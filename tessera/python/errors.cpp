// Errors of tessera as Python exceptions.
#include "tessera/base/error.h"
#include "tessera/comm/errors.h"
#include "tessera/python/bind.h"
#include "tessera/python/interrupts.h"

namespace tessera::python {
namespace {

PyObject* the_comm_error = nullptr;  // never freed

// The Python type for an error of ours or of torch's.
PyObject* type_of(const std::exception& error) {
  if (dynamic_cast<const base::CommError*>(&error)) {
    return the_comm_error;
  }
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

void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const base::CommError& of_others) {
    drop_interrupt();
    PyErr_SetString(type_of(of_others), base::message_of(of_others).c_str());
  } catch (const c10::Error& of_torch) {
    PyErr_SetString(type_of(of_torch), base::message_of(of_torch).c_str());
  }
}

}  // namespace

void bind_errors(py::module_& module) {
  the_comm_error = PyErr_NewExceptionWithDoc("tessera.CommError", "A collective could not complete: another rank failed, diverged or did not come.",
                                             PyExc_RuntimeError, nullptr);
  module.add_object("CommError", the_comm_error);
  py::register_local_exception_translator(translate);
}

}  // namespace tessera::python
