// Runs the tests, or, started by one of them as `--body NAME`, one rank of a job.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/launch/environment.h"
#include "tessera/launch/run.h"
#include "tests/launch/bodies.h"

namespace tessera::launch {

int64_t variable(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atoll(text) : otherwise;
}

}  // namespace tessera::launch

namespace {

int run_body(const std::string& name) {
  using namespace tessera;
  for (const int signal : {SIGINT, SIGTERM}) {
    std::signal(signal, [](int) { comm::request_stop(); });
  }
  const char* folder = std::getenv("TESSERA_TEST_OUT");
  const comm::ProcessOptions options{
      .deadline = std::chrono::milliseconds(launch::variable("TESSERA_TEST_DEADLINE", 30000)),
      .warn_after = std::chrono::milliseconds(launch::variable("TESSERA_TEST_WARN", 10000)),
      .intra_op_threads = 1};
  try {
    const auto place = launch::find_place();
    std::ofstream out(std::string(folder ? folder : ".") + "/out_" + std::to_string(place->rank));
    launch::run_job(place->size, [&](int64_t rank) { launch::bodies().at(name)(rank, out); }, options);
    return 0;
  } catch (const Stopped& error) {
    std::cerr << "body: " << base::message_of(error) << std::endl;
    return 130;
  } catch (const std::exception& error) {
    std::cerr << "body: " << base::message_of(error) << std::endl;
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--body") {
    return run_body(argv[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
