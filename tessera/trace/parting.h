// Where the ranks of a job parted, from what their flight recorders left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::trace {

// One collective or message as a recorder left it.
struct LeftRecord {
  size_t group = 0;  // of the recorder's groups
  int64_t number = 0;
  std::string kind = {}, detail = {}, op = {}, dtype = {}, from = {}, to = {};
  std::vector<int64_t> sizes = {};
  bool is_uniform = false;  // all members call it with these sizes
  int64_t tensors = 0, bytes = 0, peer = -1, tag = -1;
  std::string state = {};           // running, done, failed
  double begin_us = 0, end_us = 0;  // since 1970; no end: running

  bool is_message() const { return tag >= 0; }
  // Whether the rank was in it when it failed.
  bool is_open() const { return state != "done"; }
};

struct LeftGroup {
  std::string name;
  std::vector<int64_t> ranks;
  int64_t collectives = 0;  // begun
};

// What one rank left.
struct LeftFlights {
  int64_t rank = 0, world = 0;
  std::string reason;
  double at_us = 0;
  std::vector<LeftGroup> groups = {};
  std::vector<LeftRecord> records = {};  // oldest first
};

// Reads FlightRecorder::json. `source` is for messages. Throws DataError.
LeftFlights parse_flights(const std::string& json, const std::string& source);

// Reads files, and those in folders that are named as flight_file names them. Throws DataError if there are none, if
// one cannot be read, if two are of one rank, or if they are of jobs of different sizes.
std::vector<LeftFlights> read_flights(const std::vector<std::string>& files_and_folders);

// For people: whose recorder is missing; for each group in which the ranks differ, the first collective at which they
// do and who calls what, or who is behind: did not begin what the others wait in; different calls first, then by time;
// and what each rank was doing, and why it ended. Only collectives that all recorders of a group still hold are
// compared.
std::string parting_text(const std::vector<LeftFlights>& ranks);

}  // namespace tessera::trace
