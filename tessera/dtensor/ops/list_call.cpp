#include "tessera/dtensor/ops/list_call.h"

#include "tessera/dtensor/record/arguments.h"

namespace tessera::dtensor {

c10::ArrayRef<c10::IValue> arguments_of(const OpInfo& info, const torch::jit::Stack& stack) {
  return c10::ArrayRef<c10::IValue>(stack.data() + (stack.size() - info.num_args()), info.num_args());
}

std::vector<MetaPtr> written_tensors(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  std::vector<MetaPtr> written;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!info.args[i].written) {
      continue;
    }
    for_each_tensor({args[i]}, [&](const at::Tensor& tensor, int, int) {
      if (is_dtensor(tensor)) {
        written.push_back(MetaPtr::reclaim_copy(meta_of(tensor)));
      }
    });
  }
  return written;
}

void note_list_call(RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  for_each_tensor(args, [&](const at::Tensor& tensor, int, int) {
    if (is_dtensor(tensor)) {
      state.ctx.program.note(info.name.c_str(), meta_of(tensor)->spec->hash);
    }
  });
}

}  // namespace tessera::dtensor
