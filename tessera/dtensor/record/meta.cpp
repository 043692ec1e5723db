#include "tessera/dtensor/record/meta.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include <c10/core/DispatchKeySet.h>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/layout/vocabulary.h"

namespace tessera::dtensor {

namespace {

c10::DispatchKeySet dtensor_keys() {
  static const c10::DispatchKeySet keys =
      c10::DispatchKeySet(kKey) | c10::DispatchKeySet(c10::DispatchKey::AutocastCPU) |
      c10::getAutogradRelatedKeySetFromBackend(c10::BackendComponent::PrivateUse3Bit);
  return keys;
}

// How many stages lie between `at` and `to`, if it is on the way there from `from` and goes on by messages alone.
std::optional<int64_t> rest_of_way(const layout::Placements& from, const layout::Placements& at,
                                   const layout::Placements& to) {
  int64_t rest = 0;
  for (size_t axis = 0; axis < to.size(); ++axis) {
    if (at[axis] == to[axis]) {
      continue;
    }
    if (!at[axis].is_on() || !to[axis].is_on()) {
      return std::nullopt;
    }
    const int64_t here = layout::order_of_stage(at[axis].stage), end = layout::order_of_stage(to[axis].stage);
    const int64_t begin = from[axis].is_on() ? layout::order_of_stage(from[axis].stage) : here;
    if (here < std::min(begin, end) || here > std::max(begin, end)) {
      return std::nullopt;
    }
    rest += std::abs(end - here);
  }
  return rest;
}

// Note [Husks]. libtorch keeps two records of a tensor on the heap: the count of its writes, and what few tensors have
// (ExtraMeta), among it our Meta. A dropped DTensor leaves both, as good as new, in its own memory to the thread's next
// one. A view leaves no count, as it is its base's; so its husk goes to a view.
struct Husk {
  std::unique_ptr<c10::ExtraMeta> extra;
  c10::VariableVersion writes;
};

template <bool counts_writes>
struct GiveBackHusk {
  void operator()(Husk* husk) const {
    std::destroy_at(husk);
    ::operator delete(husk);
  }
};
template <bool counts_writes>
using Husks = base::Spares<std::unique_ptr<Husk, GiveBackHusk<counts_writes>>>;

// The TensorImpl of a DTensor.
struct Maker final : TensorLike {
  Maker(MetaPtr&& meta, Husk&& parts, c10::IntArrayRef sizes, c10::IntArrayRef strides, caffe2::TypeMeta dtype,
        c10::Device device)
      : TensorLike(dtensor_keys(), dtype, device) {
    set_sizes_and_strides(sizes, strides);
    take(std::move(parts.extra), std::move(meta));
  }

  // The constructor asks a storage for the device: that of `like`, borrowed so long, without counting it.
  Maker(MetaPtr&& meta, Husk&& parts, const Maker& like)
      : TensorLike(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim(like.storage_.unsafeGetStorageImpl())),
                   dtensor_keys(), like.data_type_, std::move(parts.writes)) {
    storage_.unsafeReleaseStorageImpl();
    copy_shape(like);
    take(std::move(parts.extra), std::move(meta));
  }

  static void* operator new(size_t size) { return ::operator new(size); }
  static void* operator new(size_t, void* place) noexcept { return place; }
  static void operator delete(void* memory) { ::operator delete(memory); }
  static void operator delete(Maker* dropped, std::destroying_delete_t) {
    Husk left{std::move(dropped->extra_meta_), {}};
    if (dropped->version_counter_.enabled() && dropped->version_counter_.unique()) {
      left.writes = std::move(dropped->version_counter_);
      if (left.writes.current_version() != 0) {
        left.writes.set_version(0);
      }
    }
    std::destroy_at(dropped);
    if (!left.extra) {
      return ::operator delete(dropped);
    }
    std::destroy_at(left.extra.get());
    std::construct_at(left.extra.get());
    left.writes.enabled() ? keep<true>(dropped, std::move(left)) : keep<false>(dropped, std::move(left));
  }

  // A prototype is no tensor of the program, but one that others are made like.
  void lend_storage() {
    storage_ = c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device()), nullptr, false);
  }
  void be_view(const c10::VariableVersion& writes_of_base) { count_writes_with(dtensor_keys(), writes_of_base); }

 private:
  void take(std::unique_ptr<c10::ExtraMeta>&& extra, MetaPtr&& meta) {
    set_storage_access_should_throw();
    extra_meta_ = std::move(extra);
    set_backend_meta(std::move(meta));
  }

  template <bool counts_writes>
  static void keep(void* memory, Husk&& left) {
    using Kept = std::unique_ptr<Husk, GiveBackHusk<counts_writes>>;
    Husks<counts_writes>::keep(Kept(new (memory) Husk(std::move(left))));
  }
};

// Memory for a Maker; what the last one left there is moved to `parts`.
template <bool counts_writes>
void* take_husk(Husk& parts) {
  Husk* husk = Husks<counts_writes>::take().release();
  if (C10_UNLIKELY(!husk)) {
    return ::operator new(sizeof(Maker));
  }
  parts = std::move(*husk);
  std::destroy_at(husk);
  return husk;
}

template <typename... Arguments>
c10::intrusive_ptr<Maker> make_in(void* memory, Arguments&&... arguments) {
  return c10::intrusive_ptr<Maker>::unsafe_steal_from_new(new (memory) Maker(std::forward<Arguments>(arguments)...));
}

template <bool counts_writes>
c10::intrusive_ptr<Maker> make(MetaPtr meta, const layout::SpecData& spec, c10::Device device) {
  Husk parts;
  void* memory = take_husk<counts_writes>(parts);
  return make_in(memory, std::move(meta), std::move(parts), spec.sizes, spec.strides,
                 caffe2::TypeMeta::fromScalarType(spec.dtype), device);
}

C10_NOINLINE at::Tensor make_first(MetaPtr meta, bool is_inference) {
  const layout::SpecData& spec = *meta->spec;
  const c10::Device device = meta->local.device();
  auto made = make<true>(std::move(meta), spec, device);
  if (made->is_inference() != is_inference) {
    made->be_view(is_inference ? c10::VariableVersion() : c10::VariableVersion(0));
  }
  return at::Tensor(std::move(made));
}

// Makes the prototype, unless this is the first tensor that asks for it.
C10_NOINLINE void prepare(Prototype& prototype, const layout::SpecData& spec, c10::Device device) {
  prototype.made.reset();
  if (std::exchange(prototype.is_worthwhile, true)) {
    auto made = make<false>(MetaPtr(), spec, device);
    made->lend_storage();
    prototype.made = std::move(made);
  }
}

// The prototype of DTensors of this layout on this device; null for the first of them.
const Maker* prototype_in(Prototype& kept, const layout::SpecData& spec, c10::Device device) {
  if (C10_UNLIKELY(!kept.made || kept.made->device() != device)) {
    prepare(kept, spec, device);
  }
  return static_cast<const Maker*>(kept.made.get());
}

std::string no_storage() {
  return c10::str("A DTensor has no storage of its own: call ", base::in_library("to_local(x)"),
                  " for this rank's part, or ", base::in_library("full_tensor(x)"), " for the whole value.");
}

}  // namespace

void Meta::release_resources() {
  local.reset();
  root.reset();
  rare.reset();
}

Rare& Meta::make_rare() {
  if (!rare) {
    rare = std::make_unique<Rare>();
  }
  return *rare;
}

Moment Meta::moment() const {
  const Meta& held = memory();
  return {held.writes, epoch, version_of(held.local)};
}

bool Meta::unchanged_since(const Moment& then) const { return !memory().local.is_inference() && moment() == then; }

at::Tensor Meta::find_copy(GatheredCopy Rare::* slot, const Spec& wanted) const {
  if (!rare) {
    return {};
  }
  const GatheredCopy& copy = rare.get()->*slot;
  return copy.spec == wanted && may_read(copy) ? copy.part : at::Tensor();
}

bool Meta::may_read(const GatheredCopy& copy) const {
  return unchanged_since(copy.made) && copy.part.is_inference() <= c10::InferenceMode::is_enabled();
}

const GatheredCopy* Meta::find_sent(const Spec& wanted) const {
  if (!rare) {
    return nullptr;
  }
  const auto found = std::find_if(rare->sent.begin(), rare->sent.end(),
                                  [&](const GatheredCopy& copy) { return copy.spec == wanted && may_read(copy); });
  return found == rare->sent.end() ? nullptr : &*found;
}

const GatheredCopy* Meta::nearest_sent(const Spec& to) const {
  const GatheredCopy* nearest = nullptr;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; rare && i < rare->sent.size(); ++i) {
    const GatheredCopy& copy = rare->sent[i];
    const auto rest = rest_of_way(spec->placements, copy.spec->placements, to->placements);
    if (rest && *rest < least && may_read(copy)) {
      nearest = &copy;
      least = *rest;
    }
  }
  return nearest;
}

void Meta::keep_sent(const Spec& copy_spec, at::Tensor part) {
  std::vector<GatheredCopy>& sent = make_rare().sent;
  std::erase_if(sent, [&](const GatheredCopy& copy) { return !may_read(copy); });
  sent.push_back({copy_spec, std::move(part), moment()});
}

void Meta::keep_copy(GatheredCopy Rare::* slot, const Spec& copy_spec, at::Tensor part) {
  make_rare().*slot = {copy_spec, std::move(part), moment()};
}

void Meta::replace(at::Tensor new_local, Spec new_spec) {
  local = std::move(new_local);
  spec = new_spec;
  ++epoch;
  if (!rare) {
    return;
  }
  rare->gathered = rare->kept = {};
  rare->sent.clear();
  if (rare->derived) {
    root.reset();
    rare->derived->shares_memory = false;
    rare->derived->made = rare->derived->base->moment();
  }
}

at::Tensor wrap(MetaPtr meta) {
  const layout::SpecData& spec = *meta->spec;
  const c10::Device device = meta->local.device();
  return at::Tensor(make<false>(std::move(meta), spec, device));
}

[[gnu::flatten]] at::Tensor wrap(MetaPtr meta, Prototype& prototype) {
  const at::Tensor& local = meta->local;
  const Maker* like = prototype_in(prototype, *meta->spec, local.device());
  if (C10_UNLIKELY(!like)) {
    return make_first(std::move(meta), local.is_inference());
  }
  Husk parts;
  if (C10_UNLIKELY(local.is_inference())) {
    void* memory = take_husk<false>(parts);
    return at::Tensor(make_in(memory, std::move(meta), std::move(parts), *like));
  }
  void* memory = take_husk<true>(parts);
  if (C10_UNLIKELY(!parts.writes.enabled())) {
    parts.writes = c10::VariableVersion(0);
  }
  return at::Tensor(make_in(memory, std::move(meta), std::move(parts), *like));
}

C10_NOINLINE at::Tensor wrap_view(MetaPtr meta, const c10::VariableVersion& writes_of_base) {
  const layout::SpecData& spec = *meta->spec;
  const c10::Device device = meta->local.device();
  auto made = make<false>(std::move(meta), spec, device);
  made->be_view(writes_of_base);
  return at::Tensor(std::move(made));
}

[[gnu::flatten]] at::Tensor wrap_view(MetaPtr meta, const c10::VariableVersion& writes_of_base, Prototype& prototype) {
  const Maker* like = prototype_in(prototype, *meta->spec, meta->local.device());
  if (C10_UNLIKELY(!like)) {
    return wrap_view(std::move(meta), writes_of_base);
  }
  Husk parts;
  void* memory = take_husk<false>(parts);
  parts.writes = writes_of_base;
  return at::Tensor(make_in(memory, std::move(meta), std::move(parts), *like));
}

at::Tensor wrap(at::Tensor local, Spec spec, const Origin* origin) {
  auto meta = c10::make_intrusive<Meta>();
  meta->local = std::move(local);
  meta->spec = spec;
  meta->origin = origin;
  return wrap(std::move(meta));
}

at::Tensor wrap_deferred(const at::Tensor& like, std::shared_ptr<Recorder> recorder, int64_t recorded) {
  auto meta = c10::make_intrusive<Meta>();
  Rare& rare = meta->make_rare();
  rare.recorder = std::move(recorder);
  rare.recorded = recorded;
  return at::detail::make_tensor<Maker>(std::move(meta), Husk(), like.sizes(), like.strides(), like.dtype(),
                                        c10::Device(c10::kCPU));
}

void become(const at::Tensor& tensor, const at::Tensor& value) {
  TESSERA_ASSERT(is_dtensor(value));
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (is_dtensor(tensor)) {
    // Aliases made by detach share the Meta; they follow.
    Meta* from = meta_of(value);
    Meta* to = meta_of(tensor);
    to->replace(from->local, from->spec);
    to->origin = from->origin;
    to->parameter = from->parameter;
    if (to->rare) {
      to->rare->recorder = nullptr;
    }
    return;
  }
  impl->shallow_copy_from(value.getIntrusivePtr());
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_(no_storage());
}

}  // namespace tessera::dtensor
