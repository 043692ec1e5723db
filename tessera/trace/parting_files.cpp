#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/read_file.h"
#include "tessera/trace/parting.h"

namespace tessera::trace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

LeftRecord record_of(const json& object) {
  LeftRecord record;
  object.at("group").get_to(record.group);
  object.at("number").get_to(record.number);
  for (const auto& [key, text] : {std::pair("kind", &record.kind),
                                  {"detail", &record.detail},
                                  {"op", &record.op},
                                  {"dtype", &record.dtype},
                                  {"state", &record.state}}) {
    object.at(key).get_to(*text);
  }
  object.at("sizes").get_to(record.sizes);
  record.is_uniform = object.value("uniform", false);
  object.at("tensors").get_to(record.tensors);
  object.at("bytes").get_to(record.bytes);
  record.peer = object.value("peer", int64_t{-1});
  record.tag = object.value("tag", int64_t{-1});
  record.from = object.value("from", "");
  record.to = object.value("to", "");
  object.at("begin_us").get_to(record.begin_us);
  record.end_us = object.value("end_us", 0.0);
  return record;
}

bool is_flight_file(const fs::path& path) {
  const auto name = path.filename().string();
  return name.starts_with("flight_rank_") && name.ends_with(".json");
}

std::vector<fs::path> files_of(const std::vector<std::string>& files_and_folders) {
  std::vector<fs::path> files;
  for (const auto& given : files_and_folders) {
    if (!fs::is_directory(given)) {
      files.emplace_back(given);
      continue;
    }
    const auto before = files.size();
    for (const auto& folder : {fs::path(given), fs::path(given) / "trace"}) {
      if (!fs::is_directory(folder)) {
        continue;
      }
      for (const auto& entry : fs::directory_iterator(folder)) {
        if (is_flight_file(entry.path())) {
          files.push_back(entry.path());
        }
      }
    }
    TESSERA_CHECK_AS(DataError, files.size() > before, "[trace] \"", given,
                     "\" holds no flight_rank_*.json; accepted: a run's folder, its trace/, "
                     "or the folder of --log-dir, of a run that failed");
  }
  return files;
}

std::string content_of(const fs::path& path) {
  auto text = base::try_read_file(path);
  TESSERA_CHECK_AS(DataError, text, "[trace] cannot read ", path, "; accepted: a readable file");
  return *std::move(text);
}

}  // namespace

LeftFlights parse_flights(const std::string& text, const std::string& source) {
  try {
    const auto object = json::parse(text);
    TESSERA_CHECK_AS(DataError, object.at("flight_recorder") == 1, "[trace] ", source, " is of format ",
                     object.at("flight_recorder").dump(), "; accepted: 1");
    LeftFlights flights;
    object.at("rank").get_to(flights.rank);
    object.at("world").get_to(flights.world);
    object.at("reason").get_to(flights.reason);
    object.at("at_us").get_to(flights.at_us);
    for (const auto& group : object.at("groups")) {
      flights.groups.push_back({group.at("name"), group.at("ranks"), group.at("collectives")});
    }
    for (const auto& record : object.at("records")) {
      flights.records.push_back(record_of(record));
      TESSERA_CHECK_AS(DataError, flights.records.back().group < flights.groups.size(), "[trace] ", source,
                       " has a record of a group that it lacks");
    }
    return flights;
  } catch (const json::exception& error) {
    TESSERA_THROW(DataError, "[trace] ", source, " is not what a flight recorder left: ", error.what());
  }
}

std::vector<LeftFlights> read_flights(const std::vector<std::string>& files_and_folders) {
  std::vector<LeftFlights> all;
  for (const auto& file : files_of(files_and_folders)) {
    all.push_back(parse_flights(content_of(file), file.string()));
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    TESSERA_CHECK_AS(DataError, all[i].rank != all[i + 1].rank && all[i].world == all[i + 1].world,
                     "[trace] files of rank ", all[i].rank, " of ", all[i].world, " and of rank ", all[i + 1].rank,
                     " of ", all[i + 1].world, " are of different runs; accepted: one file for each rank of one run");
  }
  return all;
}

}  // namespace tessera::trace
