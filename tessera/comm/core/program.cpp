#include "tessera/comm/core/program.h"

#include <atomic>

namespace tessera::comm {

namespace {

std::atomic<DetailPrinter> the_detail_printer{nullptr};

}  // namespace

void set_detail_printer(DetailPrinter printer) { the_detail_printer = printer; }

DetailPrinter detail_printer() { return the_detail_printer; }

}  // namespace tessera::comm
