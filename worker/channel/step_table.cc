#include "worker/channel/step_table.h"

#include <fmt/format.h>

#include "worker/channel/json_fields.h"

namespace sft::channel {

template <typename V>
static void Fields(V& v, TimeShare& s) {
  v("kind", s.kind);
  v("seconds", s.seconds);
}

template <typename V>
static void Fields(V& v, StepTable& t) {
  v("error", t.error);
  v("rank", t.rank);
  v("device", t.device);
  v("first_step", t.first_step);
  v("steps", t.steps);
  v("seconds", t.seconds);
  v.List("shares", t.shares);
  v("hidden_communication", t.hidden_communication);
  v("step_before", t.step_before);
  v("stall", t.stall);
  v("events", t.events);
  v("events_left_out", t.events_left_out);
  v("crc32", t.crc32);
  v("text_bytes", t.text_bytes);
  v("trace_bytes", t.trace_bytes);
  v("notes", t.notes);
}

std::string ToJson(const StepTable& table) {
  StepTable copy = table;
  FieldWriter writer;
  Fields(writer, copy);
  return writer.Take() + "\n";
}

absl::StatusOr<StepTable> ParseStepTable(std::string_view json) {
  constexpr size_t kMostBytes = 1 << 20;
  SFT_ASSIGN_OR_RETURN(const nlohmann::json object, ParseObject(json, kMostBytes, "step table"));
  FieldReader reader(object);
  reader.Require("rank");
  StepTable table;
  Fields(reader, table);
  if (!reader.status().ok()) return Annotate(reader.status(), "step table");
  return table;
}

std::string RecordingFolder(std::string_view attempt_dir, std::string_view id) {
  return fmt::format("{}/profile-{}", attempt_dir, id);
}

std::string RecordingFolder(std::string_view attempt_dir, std::string_view id, int rank) {
  return fmt::format("{}/rank-{}", RecordingFolder(attempt_dir, id), rank);
}

}  // namespace sft::channel
