#include "server/openai/tuned.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "common/base/json.h"
#include "server/openai/errors.h"
#include "server/openai/fine_tuning.h"
#include "server/state/names.h"

namespace sft::server::openai {
namespace {

constexpr std::string_view kAlias = "ftjob-", kJob = "job-", kTuned = "ft:", kFileOfJob = "file-";

std::string IdOfJob(const v1::Job& job) {
  const absl::StatusOr<JobRef> ref = ParseJobName(job.name());
  return ref.ok() ? ref->id : job.name();
}

const v1::ResolvedValue* FindResolved(const v1::Job& job, std::string_view key) {
  const auto found = std::ranges::find(job.resolved(), key, &v1::ResolvedValue::key);
  return found == job.resolved().end() ? nullptr : &*found;
}

Json NumberOf(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  if (text.empty() || std::from_chars(text.data(), end, number).ptr != end) return nullptr;
  if (number == std::floor(number) && std::abs(number) < 1e15) {
    return static_cast<int64_t>(number);
  }
  return number;
}

Json NumberOfKey(const v1::Job& job, std::string_view key) {
  return NumberOf(ValueOfKey(job, key));
}

// What the learning rate was multiplied by. Null: the job says its rate itself.
Json MultiplierOf(const v1::Job& job) {
  const v1::ResolvedValue* rate = FindResolved(job, "hyperparameters.learning_rate");
  if (rate == nullptr) return nullptr;
  const std::string& origin = rate->origin();
  if (origin.starts_with(kMultiplierOrigin)) {
    return NumberOf(origin.substr(std::string_view(kMultiplierOrigin).size()));
  }
  return origin.starts_with("default") || origin.starts_with("derived") ? Json(1) : Json();
}

const char* StatusOf(const v1::Job& job) {
  switch (job.state()) {
    case v1::Job::PENDING:
      return job.held() ? "paused" : "queued";
    case v1::Job::SUCCEEDED:
      return "succeeded";
    case v1::Job::FAILED:
      return "failed";
    case v1::Job::CANCELLED:
      return "cancelled";
    default:
      return job.held() ? "pausing" : "running";
  }
}

Json Seconds(bool there, const google::protobuf::Timestamp& time) {
  return there ? Json(time.seconds()) : Json();
}

Json OrNone(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json ErrorJson(const v1::Job& job) {
  if (job.state() != v1::Job::FAILED) return nullptr;
  const v1::Verdict& verdict = job.verdict();
  std::string message = verdict.message();
  if (!verdict.advice().empty()) message += (message.empty() ? "" : "; ") + verdict.advice();
  return {{"code", verdict.code()},
          {"message", std::move(message)},
          {"param", verdict.code() == "bad_data" ? Json("training_file") : Json()}};
}

// What lists of jobs have, too, so that a model has one name everywhere.
std::string SuffixOf(const v1::Job& job) {
  std::string suffix = job.display_name();
  if (suffix == kUnnamed) return "";
  std::ranges::replace(suffix, ':', '-');
  return suffix;
}

Json MethodJson(const v1::Job& job, const Json& values) {
  const bool dpo = ValueOfKey(job, "training.loss") == "dpo";
  const char* const type = dpo ? "dpo" : "supervised";
  Json own = values;
  if (dpo) own["beta"] = NumberOfKey(job, "training.preference.beta");
  return {{"type", type}, {type, {{"hyperparameters", std::move(own)}}}};
}

int64_t MicrosOf(const google::protobuf::Timestamp& time) {
  return time.seconds() * 1'000'000 + time.nanos() / 1000;
}

std::string LossText(double loss) { return fmt::format("{:.4f}", loss); }

// A number as JSON has it, or nothing.
std::string CsvNumber(bool there, double number) {
  return there && std::isfinite(number) ? fmt::format("{:.6g}", number) : "";
}

}  // namespace

std::string JobIdOf(std::string_view id) {
  if (!id.starts_with(kAlias)) return std::string(id);
  return std::string(kJob) + std::string(id.substr(kAlias.size()));
}

std::string ModelNameOf(const v1::Job& job) {
  return fmt::format("{}{}:{}:{}:{}", kTuned, job.model(), job.project(), SuffixOf(job),
                     IdOfJob(job));
}

std::optional<std::string> JobOfModelName(std::string_view name) {
  if (!name.starts_with(kTuned)) return std::nullopt;
  const std::string_view job = name.substr(name.rfind(':') + 1);
  if (!job.starts_with(kJob)) return std::nullopt;
  return std::string(job);
}

std::string ResultFileOf(const std::string& job_id) { return std::string(kFileOfJob) + job_id; }

std::optional<std::string> JobOfResultFile(std::string_view file_id) {
  if (!file_id.starts_with(kFileOfJob)) return std::nullopt;
  const std::string_view job = file_id.substr(kFileOfJob.size());
  if (!job.starts_with(kJob)) return std::nullopt;
  return std::string(job);
}

std::string CsvHead() { return "step,train_loss,valid_loss,learning_rate,tokens\n"; }

std::string CsvLine(const v1::Metric& point) {
  const bool trains = !point.is_eval();
  return fmt::format("{},{},{},{},{}\n", point.step(), CsvNumber(trains, point.loss()),
                     CsvNumber(!trains, point.val_loss()), CsvNumber(trains, point.lr()),
                     trains ? std::to_string(point.tokens()) : "");
}

std::string ValueOfKey(const v1::Job& job, std::string_view key) {
  const v1::ResolvedValue* value = FindResolved(job, key);
  return value == nullptr ? "" : value->value();
}

Json JobJson(const v1::Job& job) {
  const bool ended = job.has_end_time();
  const bool delivered = job.state() == v1::Job::SUCCEEDED && !job.artifacts().empty();
  const Json values = {{"n_epochs", NumberOfKey(job, "hyperparameters.n_epochs")},
                       {"batch_size", NumberOfKey(job, "hyperparameters.global_batch")},
                       {"learning_rate_multiplier", MultiplierOf(job)}};
  Json results = Json::array();
  if (job.state() == v1::Job::SUCCEEDED) results.push_back(ResultFileOf(IdOfJob(job)));
  Json metadata = Json::object();
  for (const auto& [key, value] : job.metadata()) metadata[key] = value;
  const Json seed = NumberOfKey(job, "hyperparameters.seed");
  return {{"id", IdOfJob(job)},
          {"object", "fine_tuning.job"},
          {"created_at", job.create_time().seconds()},
          {"status", StatusOf(job)},
          {"error", ErrorJson(job)},
          {"model", job.model()},
          {"fine_tuned_model", delivered ? Json(ModelNameOf(job)) : Json()},
          {"organization_id", job.project()},
          {"training_file", ValueOfKey(job, "job.data")},
          {"validation_file", OrNone(ValueOfKey(job, "data.val"))},
          {"result_files", std::move(results)},
          {"finished_at", Seconds(ended, job.end_time())},
          {"estimated_finish",
           Seconds(!ended && job.outlook().has_end_time(), job.outlook().end_time())},
          {"seed", seed.is_null() ? Json(0) : seed},
          {"trained_tokens", nullptr},
          {"user_provided_suffix", OrNone(SuffixOf(job))},
          {"hyperparameters", values},
          {"method", MethodJson(job, values)},
          {"integrations", Json::array()},
          {"metadata", std::move(metadata)},
          {"sft",
           {{"job", job.name()},
            {"state", v1::Job::State_Name(job.state())},
            {"reason", job.reason()},
            {"variant", job.variant()}}}};
}

Json FileJson(const v1::File& file) {
  return {{"id", file.name().substr(file.name().rfind('/') + 1)},
          {"object", "file"},
          {"bytes", file.size()},
          {"created_at", file.create_time().seconds()},
          {"expires_at", nullptr},
          {"filename", file.file_name()},
          {"purpose", file.purpose()},
          {"status", "processed"},  // its rows are checked before it has an id
          {"status_details", nullptr}};
}

Json ResultFileJson(const v1::Job& job, std::optional<int64_t> bytes) {
  return {{"id", ResultFileOf(IdOfJob(job))},
          {"object", "file"},
          {"bytes", bytes.has_value() ? Json(*bytes) : Json()},
          {"created_at", job.end_time().seconds()},
          {"expires_at", nullptr},
          {"filename", fmt::format("{}-metrics.csv", IdOfJob(job))},
          {"purpose", "fine-tune-results"},
          {"status", "processed"},
          {"status_details", nullptr}};
}

std::string CheckpointId(const v1::Job& job, const v1::Checkpoint& checkpoint) {
  return fmt::format("ftckpt-{}-{}", IdOfJob(job), checkpoint.step());
}

Json CheckpointJson(const v1::Job& job, const v1::Checkpoint& checkpoint,
                    const std::vector<v1::Metric>& points) {
  Json metrics = {{"step", checkpoint.step()}};
  for (const v1::Metric& point : points) {
    if (point.step() != checkpoint.step()) continue;
    metrics[point.is_eval() ? "full_valid_loss" : "train_loss"] =
        point.is_eval() ? point.val_loss() : point.loss();
  }
  return {
      {"id", CheckpointId(job, checkpoint)},
      {"object", "fine_tuning.job.checkpoint"},
      {"created_at", checkpoint.commit_time().seconds()},
      {"fine_tuned_model_checkpoint", fmt::format("{}@{}", ModelNameOf(job), checkpoint.step())},
      {"fine_tuning_job_id", IdOfJob(job)},
      {"metrics", std::move(metrics)},
      {"step_number", checkpoint.step()}};
}

Json TunedModelJson(const v1::Job& job) {
  return {{"id", ModelNameOf(job)},
          {"object", "model"},
          {"created", job.end_time().seconds()},
          {"owned_by", job.project()},
          {"root", job.model()}};
}

std::string ListJson(std::vector<Json> items, bool has_more) {
  const auto id = [](const Json& item) { return item.contains("id") ? item["id"] : Json(); };
  Json list = {{"object", "list"},
               {"first_id", items.empty() ? Json() : id(items.front())},
               {"last_id", items.empty() ? Json() : id(items.back())},
               {"has_more", has_more}};
  Json data = Json::array();
  for (Json& item : items) data.push_back(std::move(item));
  list["data"] = std::move(data);
  return DumpJson(list);
}

absl::StatusOr<EventPage> EventPage::Make(const std::string& after, size_t limit) {
  constexpr std::string_view kId = "ftevent-";
  if (after.empty()) return EventPage(std::nullopt, limit);
  Place place;
  std::string_view rest = after;
  const auto read = [&rest](int64_t& number) {
    const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    rest.remove_prefix(static_cast<size_t>(stop - rest.data()));
    return error == std::errc() && number >= 0;
  };
  bool good = rest.starts_with(kId);
  if (good) rest.remove_prefix(kId.size());
  good = good && read(place.time_us) && !rest.empty() &&
         std::string_view("emv").find(rest[0]) != std::string_view::npos;
  if (good) {
    place.kind = rest.front();
    rest.remove_prefix(1);
  }
  if (!good || !read(place.number) || !rest.empty()) {
    return ParamError("after", "after is not the id of an event of this job");
  }
  return EventPage(place, limit);
}

std::string EventPage::IdOf(const Place& place) {
  return fmt::format("ftevent-{}{}{}", place.time_us, place.kind, place.number);
}

bool EventPage::Wants(const Place& place) const {
  if (before_.has_value() && place >= *before_) return false;
  return items_.size() <= limit_ || place > items_.front().place;
}

void EventPage::Keep(Place place, openai::Json json) {
  const auto newer = [](const Item& a, const Item& b) { return a.place > b.place; };
  items_.push_back({place, std::move(json)});
  std::ranges::push_heap(items_, newer);
  if (items_.size() <= limit_ + 1) return;
  std::ranges::pop_heap(items_, newer);
  items_.pop_back();
}

void EventPage::Add(const v1::JobEvent& event) {
  const Place place{MicrosOf(event.time()), 'e', event.sequence()};
  if (!Wants(place)) return;
  const bool failed = event.type() == "verdict" && !event.message().starts_with("succeeded");
  const char* const level = event.type() == "warning" ? "warn" : failed ? "error" : "info";
  const std::string message =
      event.message().empty() ? event.type() : fmt::format("{}: {}", event.type(), event.message());
  Keep(place, {{"id", IdOf(place)},
               {"object", "fine_tuning.job.event"},
               {"created_at", event.time().seconds()},
               {"level", level},
               {"message", message},
               {"type", "message"},
               {"data", {{"type", event.type()}, {"attempt", event.attempt()}}}});
}

void EventPage::Add(const v1::Metric& point) {
  const bool validates = point.is_eval();
  const Place place{MicrosOf(point.time()), validates ? 'v' : 'm', point.step()};
  if (!Wants(place)) return;
  openai::Json data = {{"step", point.step()}};
  std::string message;
  if (validates) {
    data["valid_loss"] = point.val_loss();
    message = fmt::format("Step {}: validation loss={}", point.step(), LossText(point.val_loss()));
  } else {
    data["total_steps"] = point.total_steps();
    data["train_loss"] = point.loss();
    data["learning_rate"] = point.lr();
    data["tokens_per_second"] = point.tokens_per_second();
    message = fmt::format("Step {}/{}: training loss={}", point.step(), point.total_steps(),
                          LossText(point.loss()));
  }
  Keep(place, {{"id", IdOf(place)},
               {"object", "fine_tuning.job.event"},
               {"created_at", point.time().seconds()},
               {"level", "info"},
               {"message", std::move(message)},
               {"type", "metrics"},
               {"data", std::move(data)}});
}

std::string EventPage::Json() const {
  std::vector<Item> items = items_;
  std::ranges::sort(items, std::ranges::greater(), &Item::place);
  const bool more = items.size() > limit_;
  if (more) items.pop_back();
  std::vector<openai::Json> list;
  for (Item& item : items) list.push_back(std::move(item.json));
  return ListJson(std::move(list), more);
}

}  // namespace sft::server::openai
