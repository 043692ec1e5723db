// One rank's plan of a checkpoint of Llama 3.1 405B (parameters and two moments) on thousands of ranks: who writes each
// tensor, and what the rank sends and receives on the way to the owners, from them, and from one mesh to another.

#include <cstdio>
#include <ctime>
#include <string>

#include "benchmarks/measure.h"
#include "tessera/catalogue/catalogue_json.h"
#include "tessera/catalogue/owners.h"
#include "tessera/catalogue/transfers.h"
#include "tests/support/llama_catalogue.h"

namespace tessera::benchmarks {
namespace {

using catalogue::Catalogue;
using layout::Mesh;

constexpr int kTurns = 5;

struct Shape {
  const char* name;
  const char* mesh;
  bool cuts_parameters;  // over dp as well, not their moments alone
};

const Shape kShapes[] = {
    {"pp=16,dp=64,tp=8, moments cut", "pp=16,dp=64,tp=8", false},
    {"pp=16,dp=64,tp=8, all cut", "pp=16,dp=64,tp=8", true},
    {"dp=1024,tp=8, moments cut", "dp=1024,tp=8", false},
    {"dp=1024,tp=8, all cut", "dp=1024,tp=8", true},
};

Catalogue llama_on(const Mesh& mesh, bool cuts_parameters) {
  const support::LlamaSizes sizes;
  return support::llama_catalogue(sizes, mesh, support::llama_lay(sizes, cuts_parameters),
                                  support::llama_lay(sizes, true));
}

// Milliseconds of the processor: everything here is one thread's work.
template <typename Body>
double processor_ms(Body&& body) {
  const std::clock_t begin = std::clock();
  body();
  return static_cast<double>(std::clock() - begin) * 1e3 / CLOCKS_PER_SEC;
}

template <typename Body>
double least_ms(Body&& body) {
  Least least;
  for (int turn = 0; turn < kTurns; ++turn) {
    least.add(processor_ms(body));
  }
  return least.value();
}

void time_shape(const Shape& shape) {
  const Catalogue all = llama_on(Mesh::parse(shape.mesh), shape.cuts_parameters);
  const auto is_parameter = [](const catalogue::Entry& e) { return e.role == catalogue::Role::kParameter; };
  const Catalogue parameters = all.subset(is_parameter);
  const Catalogue rest = all.subset([&](const catalogue::Entry& e) { return !is_parameter(e); });
  const Catalogue half = llama_on(Mesh::parse("dp=256,tp=16"), true);
  const int64_t rank = 2049;
  // What a save asks for: owners of the parameters and what goes there, and which slices of the rest are ours.
  std::vector<int64_t> owners;
  const double first = processor_ms([&] { owners = catalogue::owners_of(parameters); });
  const double owning = least_ms([&] { owners = catalogue::owners_of(parameters); });
  const Catalogue files = catalogue::whole_at(parameters, owners);
  const double to_owners = least_ms([&] { catalogue::transfers_of(parameters, files, rank); });
  const double slices = least_ms([&] {
    const catalogue::SliceOwners owner_of(rest);
    for (size_t i = 0; i < rest.entries().size(); ++i) {
      owner_of.owner(i, rank);
    }
  });
  const Catalogue loaded = half.subset(is_parameter);
  const double from_owners = least_ms([&] { catalogue::transfers_of(files, loaded, owners[0]); });
  const double to_half = least_ms([&] { catalogue::transfers_of(all, half, rank); });
  std::string text;
  const double writing = least_ms([&] { text = catalogue::to_json(all); });
  const double reading = least_ms([&] { catalogue::from_json(text, "here"); });
  std::printf("%-32s%9.2f%9.2f%9.2f%9.2f%9.2f%9.2f%9.2f%9.2f%9.2f\n", shape.name, first, owning, to_owners, slices,
              from_owners, to_half, writing, reading, static_cast<double>(text.size()) / 1e6);
  std::fflush(stdout);
}

}  // namespace
}  // namespace tessera::benchmarks

int main() {
  using namespace tessera::benchmarks;
  std::printf("%-32s%9s%9s%9s%9s%9s%9s%9s%9s%9s\n", "processor ms; 8,192 ranks", "first", "owners", "to them", "slices",
              "from", "to 4,096", "write", "read", "MB");
  for (const Shape& shape : kShapes) {
    time_shape(shape);
  }
}
