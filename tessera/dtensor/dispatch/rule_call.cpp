#include "tessera/dtensor/dispatch/rule_call.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/record/meta.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using layout::Placements;

const layout::Mesh& mesh_of(const OpInfo& info, c10::ArrayRef<IValue> args) {
  const layout::Mesh* mesh = nullptr;
  for_each_tensor(args, [&](const at::Tensor& tensor, int, int) {
    if (!is_dtensor(tensor)) {
      return;
    }
    const Spec& spec = meta_of(tensor)->spec;
    TESSERA_CHECK(!mesh || *mesh == spec->mesh, "[", info.name,
                  "] the operands live on different meshes: ", mesh->str(), " and ", spec->mesh.str(),
                  ". Redistribute one of them to the other's mesh first.");
    mesh = &spec->mesh;
  });
  TESSERA_ASSERT(mesh);
  return *mesh;
}

}  // namespace

rules::Call make_call(const OpInfo& info, c10::ArrayRef<IValue> args) {
  rules::Call call;
  call.name = info.name;
  call.schema = &info.op.schema();
  call.args = args.vec();
  call.operands.reserve(args.size());
  const layout::Mesh& mesh = mesh_of(info, args);
  for_each_tensor(args, [&](const at::Tensor& tensor, int arg, int) {
    rules::Operand operand;
    operand.arg = arg;
    operand.is_written = info.args[arg].written;
    if (is_dtensor(tensor)) {
      operand.spec = meta_of(tensor)->spec;
      const ParameterInfo* parameter = meta_of(tensor)->parameter;
      operand.is_parameter = parameter != nullptr;
      operand.is_fetched = parameter && parameter->gather && !parameter->gather->fetched.empty();
    } else {
      operand.is_plain = true;
      operand.is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
      operand.spec = Spec::make(mesh, Placements(mesh.ndim()), tensor.sizes(), tensor.strides(), tensor.scalar_type());
    }
    call.operands.push_back(std::move(operand));
  });
  return call;
}

uint64_t program_key_of(const rules::Call& call) {
  uint64_t key = base::hash_string(call.name);
  for (const rules::Operand& operand : call.operands) {
    key = base::hash_combine(key, operand.spec->hash);
  }
  for (const IValue& value : call.args) {
    if (value.isInt()) {
      key = base::hash_combine(key, static_cast<uint64_t>(value.toInt()));
    }
    if (value.isIntList()) {
      for (int64_t item : value.toIntVector()) {
        key = base::hash_combine(key, static_cast<uint64_t>(item));
      }
    }
  }
  return key;
}

uint64_t sum_key_of(const rules::Call& call) {
  uint64_t key = base::hash_string(call.name);
  for (const int64_t size : call.spec(0)->sizes) {
    key = base::hash_combine(key, static_cast<uint64_t>(size));
  }
  return key;
}

}  // namespace tessera::dtensor
