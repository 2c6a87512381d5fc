#include "client/output/event_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/json.h"

namespace sft::client {
namespace {

constexpr size_t kMaxKind = 24;

// Access to the fields of a rank's event.
class Note {
 public:
  explicit Note(const Json& json) : json_(json) {}

  double Number(const char* key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_number() ? found->get<double>() : 0.0;
  }
  std::string Text(const char* key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_string() ? found->get<std::string>() : std::string();
  }
  bool Is(const char* key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_boolean() && found->get<bool>();
  }
  bool Has(const char* key) const { return json_.contains(key); }
  std::string Size(const char* key) const { return Bytes(static_cast<int64_t>(Number(key))); }
  const Json& json() const { return json_; }

 private:
  const Json& json_;
};

// " (2 too long, of 130 tokens; 1 no answer)"
std::string SkippedBy(const Note& note) {
  const auto reasons = note.json().find("skipped_by");
  if (reasons == note.json().end() || !reasons->is_array()) return "";
  std::string text;
  for (const Json& reason : *reasons) {
    if (!reason.is_object()) continue;
    const Note rows(reason);
    text += fmt::format("{}{:.0f} {}", text.empty() ? " (" : "; ", rows.Number("rows"),
                        rows.Text("reason"));
    if (rows.Text("reason") == "too long") {
      text += fmt::format(", of {} tokens", Count(note.Number("skipped_tokens")));
    }
  }
  return text.empty() ? text : text + ")";
}

std::string Prepared(const Note& note) {
  if (note.Number("loss_tokens") == 0) {  // prompts
    return fmt::format("{:.0f} prompts, {} tokens", note.Number("rows"),
                       Count(note.Number("tokens")));
  }
  std::string text = fmt::format("{:.0f} of {:.0f} rows", note.Number("used"), note.Number("rows"));
  if (const std::string forms = note.Text("forms"); !forms.empty()) text += " (" + forms + ")";
  text += fmt::format(", {:.0f} left out{}", note.Number("skipped"), SkippedBy(note));
  if (note.Number("repeated") > 0) {
    text += fmt::format(", beside {:.0f} repeats", note.Number("repeated"));
  }
  text += fmt::format("; {} tokens, {} of them with loss", Count(note.Number("tokens")),
                      Count(note.Number("loss_tokens")));
  if (note.Number("cut") > 0) {
    text += fmt::format("; {:.0f} rows cut or split, {} tokens of them left out",
                        note.Number("cut"), Count(note.Number("cut_tokens")));
  }
  if (note.Number("validation") > 0) {
    text += fmt::format("; {:.0f} rows for validation", note.Number("validation"));
  }
  return text + (note.Is("from_cache") ? "; prepared before" : "");
}

std::string Ready(const Note& note) {
  if (note.Number("total_parameters") == 0) {  // it trains nothing
    return fmt::format("rank {:.0f} of {:.0f} on {} after {:.1f} s: {:.0f} answers in all",
                       note.Number("rank"), note.Number("world"), note.Text("device"),
                       note.Number("seconds"), note.Number("total_steps"));
  }
  return fmt::format(
      "rank {:.0f} of {:.0f} on {} after {:.1f} s: {:.0f} steps, {} of {} parameters train",
      note.Number("rank"), note.Number("world"), note.Text("device"), note.Number("seconds"),
      note.Number("total_steps"), Count(note.Number("trainable_parameters")),
      Count(note.Number("total_parameters")));
}

std::string Consistency(const Note& note) {
  std::string text = fmt::format("rank {:.0f}: weights {} ({})", note.Number("rank"),
                                 note.Is("consistent") ? "agree" : "DIFFER",
                                 note.Text("weights_sha256").substr(0, 12));
  if (note.Is("consistent") && note.Has("delivered_difference")) {
    text += fmt::format("; logits of the written files differ by {:.2g} of the largest",
                        note.Number("delivered_difference"));
  }
  if (note.Has("packing_seconds")) {
    text += fmt::format(", of a packed document by {:.2g}; checked in {:.2f} s",
                        note.Number("packing_difference"),
                        note.Number("packing_seconds") + note.Number("delivered_seconds"));
  }
  return text;
}

std::string Checkpoint(const Note& note) {
  const std::string reason = note.Text("reason");
  std::string text = fmt::format("step {:.0f} saved on its node: {} in {:.1f} s",
                                 note.Number("step"), note.Size("bytes"), note.Number("seconds"));
  if (note.Number("stall_seconds") > 0) {
    text +=
        fmt::format(", of which training stood still for {:.1f} s", note.Number("stall_seconds"));
  }
  if (!reason.empty()) text += fmt::format(" ({})", reason);
  if (note.Is("has_metric")) text += fmt::format("; metric {:.4f}", note.Number("metric"));
  return text + (note.Is("best") ? "; the best so far" : "");
}

std::string Resumed(const Note& note) {
  std::string text = fmt::format("goes on after step {:.0f}", note.Number("step"));
  const auto changes = note.json().find("changes");
  if (changes == note.json().end() || !changes->is_array()) return text;
  const char* before = "; other than then: ";
  for (const Json& change : *changes) {
    if (!change.is_string()) continue;
    text += before + change.get<std::string>();
    before = ", ";
  }
  return text;
}

// Formats predicted and measured figures of the plan.
std::string Plan(const Note& note) {
  const auto both = [&](const char* key) {
    const auto found = note.json().find(key);
    if (found == note.json().end() || !found->is_object()) return std::string();
    const Note bytes(*found);
    return bytes.Number("measured") > 0
               ? fmt::format("{} planned, {} measured", bytes.Size("predicted"),
                             bytes.Size("measured"))
               : fmt::format("{} planned", bytes.Size("predicted"));
  };
  std::string text = fmt::format("rank {:.0f}", note.Number("rank"));
  if (const std::string what = note.Text("description"); !what.empty()) text += ": " + what;
  if (const std::string memory = both("reserved_bytes"); !memory.empty()) {
    text += "; memory at the peak: " + memory;
  }
  if (note.Number("measured_tokens_per_second") > 0) {
    text += fmt::format("; {} tok/s planned, {} measured",
                        Count(note.Number("predicted_tokens_per_second")),
                        Count(note.Number("measured_tokens_per_second")));
  }
  return text;
}

// Formats an event that this client does not know: each field with its name in words.
std::string AnyFields(const Json& note) {
  std::string words;
  for (const auto& [key, value] : note.items()) {
    if (key == "event" || key == "time") continue;
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', ' ');
    words += fmt::format("{}{} {}", words.empty() ? "" : ", ", name,
                         value.is_string() ? value.get<std::string>() : DumpJson(value));
  }
  return words;
}

std::string NoteText(const std::string& type, const Json& json) {
  const Note note(json);
  if (type == "prepared") return Prepared(note);
  if (type == "ready") return Ready(note);
  if (type == "consistency") return Consistency(note);
  if (type == "checkpoint") return Checkpoint(note);
  if (type == "resumed") return Resumed(note);
  if (type == "plan") return Plan(note);
  return AnyFields(json);
}

}  // namespace

std::string EventText(const v1::JobEvent& event) {
  const Json note = ParseOrderedJson(event.message());
  return OneLine(note.is_object() ? NoteText(event.type(), note) : event.message());
}

std::string EventKind(const v1::JobEvent& event) {
  std::string kind = OneLine(event.type()).substr(0, kMaxKind);
  std::replace(kind.begin(), kind.end(), '_', ' ');
  return kind.empty() ? "event" : kind;
}

}  // namespace sft::client
