// The parts of tensors that a rank holds, as memory that is written box by box.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/catalogue/catalogue.h"
#include "tessera/catalogue/transfers.h"
#include "tessera/checkpoint/format/box_runs.h"

namespace tessera::checkpoint {

// Writes to the parts themselves where they lie in the memory of the CPU in row-major order, and otherwise to memory
// that becomes their value once all of it was written.
class Parts {
 public:
  // `tensors` of the calling rank, in the order of the catalogue's entries; both outlive this. Nothing is written yet.
  Parts(const catalogue::Catalogue& catalogue, const std::vector<at::Tensor>& tensors);

  // Calls visit(at, to, elements) for the runs of a box of the entry's tensor, which this rank holds: they come from
  // element `at` of `source`, a box that lies in row-major order, and go to the address `to`.
  template <typename Visit>
  void for_each_run(size_t entry, const Box& box, const Box& source, Visit visit) {
    auto& part = parts_[entry];
    std::byte* begin = memory_of(part);
    const Box into = catalogue::part_around(catalogue_.entries()[entry].spec, rank_, box);
    const auto element = static_cast<int64_t>(part.tensor.element_size());
    checkpoint::for_each_run(box, source, into, [&](int64_t at, int64_t to, int64_t elements) {
      visit(at, begin + to * element, elements);
    });
  }

  // So many elements of the entry's part are there; each is counted once.
  void note_written(size_t entry, int64_t elements);

 private:
  struct Part {
    at::Tensor tensor;
    at::Tensor staging;  // what is written in its place, while it is
    int64_t missing;     // elements
  };

  std::byte* memory_of(Part& part);

  const catalogue::Catalogue& catalogue_;
  const int64_t rank_;
  std::vector<Part> parts_;
};

}  // namespace tessera::checkpoint
