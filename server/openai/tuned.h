#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/openai/fields.h"
#include "sft/v1/file_service.pb.h"
#include "sft/v1/job_service.pb.h"

// Jobs that train, what they deliver and their files, as OpenAI's API shows them.

namespace sft::server::openai {

// The id of a job, "job-abc" where "ftjob-abc" stands.
std::string JobIdOf(std::string_view id);

// The name of what a job has trained, "ft:BASE:PROJECT:SUFFIX:JOB".
std::string ModelNameOf(const v1::Job& job);
// The job, "job-abc" or "job-abc@20", whose model has such a name. Nullopt: it is no such name.
std::optional<std::string> JobOfModelName(std::string_view name);

// The file of a job's curve: its id, and the job of such an id. Nullopt: it is none.
std::string ResultFileOf(const std::string& job_id);
std::optional<std::string> JobOfResultFile(std::string_view file_id);
// Its first line, and the line of a point.
std::string CsvHead();
std::string CsvLine(const v1::Metric& point);

// The value of a key of a resolved job; empty: it has none.
std::string ValueOfKey(const v1::Job& job, std::string_view key);

Json JobJson(const v1::Job& job);
Json FileJson(const v1::File& file);
// The file of a curve. `bytes`: nullopt where nobody has read it, which alone tells its size.
Json ResultFileJson(const v1::Job& job, std::optional<int64_t> bytes);
Json CheckpointJson(const v1::Job& job, const v1::Checkpoint& checkpoint,
                    const std::vector<v1::Metric>& points);
std::string CheckpointId(const v1::Job& job, const v1::Checkpoint& checkpoint);
Json TunedModelJson(const v1::Job& job);

// {"object": "list", "data": [...], "has_more": ...}; clients go on from the id of the last one.
std::string ListJson(std::vector<Json> items, bool has_more);

// Events and points of a job as one list, the newest first. Both come oldest first, and no more is
// kept of them than a page has.
class EventPage {
 public:
  // `after` is the id of the last event of the page before, or empty. INVALID_ARGUMENT where it is
  // none.
  static absl::StatusOr<EventPage> Make(const std::string& after, size_t limit);
  void Add(const v1::JobEvent& event);
  void Add(const v1::Metric& point);
  std::string Json() const;

 private:
  // A place in the order: by time, and of one time by kind and number.
  struct Place {
    int64_t time_us = 0;
    char kind = 0;
    int64_t number = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Item {
    Place place;
    openai::Json json;
  };
  EventPage(std::optional<Place> before, size_t limit) : before_(before), limit_(limit) {}
  static std::string IdOf(const Place& place);
  // Whether one of this place can be on the page, as things are.
  bool Wants(const Place& place) const;
  void Keep(Place place, openai::Json json);

  std::optional<Place> before_;
  size_t limit_;
  std::vector<Item> items_;  // a heap, the oldest on top: at most one more than the page has
};

}  // namespace sft::server::openai
