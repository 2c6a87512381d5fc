#include "server/resume/resume_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>
#include <string_view>

#include "common/base/duration.h"
#include "common/base/plain_text.h"
#include "common/base/utf8.h"
#include "common/spec/fields.h"
#include "common/spec/layout.h"

namespace sft::server {
namespace {

constexpr std::string_view kType = "compute.gpu_type", kVariant = "compute.variant",
                           kCount = "compute.gpu_count", kNodes = "compute.nodes",
                           kPerNode = "compute.gpus_per_node";
constexpr std::string_view kCopies = "data.topology.";
constexpr size_t kMaxShown = 4000;  // bytes of an origin or a path

constexpr std::string_view kStages = "hyperparameters.parallelism.pipeline_parallel_size",
                           kContext = "hyperparameters.parallelism.context_parallel_size",
                           kTensor = "hyperparameters.parallelism.tensor_parallel_size";
constexpr std::string_view kFsdp = "hyperparameters.parallelism.fsdp",
                           kStrategy = "hyperparameters.parallelism.fsdp_sharding_strategy",
                           kDeepspeed = "hyperparameters.parallelism.use_deepspeed",
                           kZeroStage = "hyperparameters.parallelism.deepspeed_stage",
                           kDeviceMap = "hyperparameters.parallelism.device_map";
constexpr std::string_view kGlobal = "hyperparameters.global_batch",
                           kDevice = "hyperparameters.per_device_batch",
                           kSteps = "hyperparameters.gradient_accumulation_steps";

// They may follow from the GPUs or the files, and a checkpoint is of one value alone.
constexpr std::string_view kKept[] = {kGlobal, "hyperparameters.optimizer",
                                      "hyperparameters.master_weights", "data.packing"};

// Of another value the states of a checkpoint would not fit.
constexpr std::string_view kFixed[] = {"job.model",         "job.adapter",
                                       "training.mode",     "lora.r",
                                       "lora.rank_pattern", "lora.target_modules",
                                       "lora.bias",         "quantization.bits",
                                       "quantization.type", "quantization.double_quant"};
constexpr std::string_view kRows[] = {"job.data", "data.mixture", "data.val"};

using KeySet = std::set<std::string, std::less<>>;

// Whether nobody gave the value.
bool Followed(const ResolvedRecord& value) {
  return value.origin == "default" || value.origin.starts_with("derived: ");
}

// Whether the value was given outside of the job file.
bool WasOverride(const ResolvedRecord& value, const std::string& file_name) {
  if (Followed(value) || value.origin.starts_with("DeepSpeed JSON, ")) return false;
  const std::string file = file_name + ":";
  return !value.origin.starts_with(file) ||
         !std::all_of(value.origin.begin() + static_cast<std::ptrdiff_t>(file.size()),
                      value.origin.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

v1::Override SetTo(std::string_view key, std::string value, std::string origin) {
  v1::Override made;
  made.set_kind(v1::Override::SET);
  made.set_key(std::string(key));
  made.set_value(std::move(value));
  made.set_origin(std::move(origin));
  return made;
}

// One that the ended job had.
v1::Override Former(const ResolvedRecord& value) {
  return SetTo(value.key, spec::AsTakenNow(value.key, value.value),
               WithoutHidden(Shortened(value.origin, kMaxShown)));
}

// Canonical, and of a key that repeats another the one that it repeats.
std::string KeyOf(const v1::Override& override) {
  const spec::Field* field = spec::FindField(override.key());
  if (field == nullptr) return override.key();
  const std::string_view key = field->key;
  if (!key.starts_with(kCopies)) return std::string(key);
  if (key.ends_with(".container_count") || key.ends_with(".total_gpus")) return std::string(kCount);
  const std::string original = fmt::format("compute.{}", key.substr(kCopies.size()));
  return spec::FindField(original) == nullptr ? std::string(key) : original;
}

// Leaves out of the former changes of the GPUs what the new ones make void, by the rules that hold
// between a job file and its overrides.
void GiveWay(const JobRecord& ended, const KeySet& said, std::vector<v1::Override>& former) {
  const bool type = said.contains(kType), variant = said.contains(kVariant),
             count = said.contains(kCount), nodes = said.contains(kNodes),
             per_node = said.contains(kPerNode);
  if (!type && !variant && !count && !nodes && !per_node) return;
  const auto drop = [&](std::string_view key) {
    return std::erase_if(former, [&](const auto& each) { return each.key() == key; }) > 0;
  };
  std::erase_if(former, [](const auto& each) { return each.key().starts_with(kCopies); });
  if (!variant && (type || count || per_node) && drop(kVariant)) {
    drop(kType), drop(kPerNode);
    former.push_back(SetTo(kType, ended.gpu_type, ended.id));
    former.push_back(SetTo(kPerNode, std::to_string(ended.gpus_per_node), ended.id));
  }
  if (variant) drop(kType), drop(kPerNode), drop(kCount);
  if (count) drop(kPerNode);
  if (count && (variant || per_node)) drop(kNodes);
  if (nodes || per_node) drop(kCount);
}

const ResolvedRecord* FormerValue(const JobRecord& job, std::string_view key) {
  for (const ResolvedRecord& value : job.resolved_values) {
    if (value.key == key) return &value;
  }
  return nullptr;
}

int64_t NumberOf(const JobRecord& job, std::string_view key) {
  const ResolvedRecord* value = FormerValue(job, key);
  int64_t number = 0;
  if (value == nullptr) return 0;
  const std::string& text = value->value;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() ? number : 0;  // 0 for "auto", too
}

// On another number of GPUs the same global batch, in micro-batches of at most the former size; and
// where these came from the layout, since the job file's may not go with it.
void DivideBatch(const JobRecord& ended, v1::SubmitJobRequest& submit) {
  std::vector<spec::Override> overrides;
  for (const v1::Override& each : submit.overrides()) {
    overrides.push_back(
        {each.key(), each.value(), each.origin(), spec::OverrideKind::kSet, WasTaken(ended, each)});
  }
  const spec::Resolution resolution =
      spec::Resolve(ended.source_text, ended.file_name, overrides,
                    {.default_gpu_type = "any", .taken_before = true});
  if (resolution.spec.compute.gpu_count < 1) return;
  // Ranks that take different rows, now and before.
  const int64_t count = std::max(1, resolution.spec.data_ranks());
  const auto sharing = [&](std::string_view key) {
    return std::max<int64_t>(1, NumberOf(ended, key));
  };
  const int64_t former =
      NumberOf(ended, kCount) / (sharing(kStages) * sharing(kContext) * sharing(kTensor));
  const int64_t global = NumberOf(ended, kGlobal);
  int64_t rows = NumberOf(ended, kDevice);
  const bool of_layout = std::ranges::any_of(
      ended.resolved_values, [](const auto& value) { return value.origin == spec::kBatchOrigin; });
  if ((count == former && !of_layout) || global % count != 0) return;
  auto& list = *submit.mutable_overrides();
  list.erase(std::remove_if(list.begin(), list.end(),
                            [](const v1::Override& each) { return each.key() == kSteps; }),
             list.end());
  *submit.add_overrides() = SetTo(kGlobal, std::to_string(global), ended.id);
  *submit.add_overrides() = SetTo(kSteps, "auto", ended.id);
  if (rows < 1) return;
  while (global / count % rows != 0) --rows;
  *submit.add_overrides() = SetTo(kDevice, std::to_string(rows), ended.id);
}

using Overrides = google::protobuf::RepeatedPtrField<v1::Override>;

KeySet KeysOf(const Overrides& overrides) {
  KeySet said;
  for (const v1::Override& override : overrides) said.insert(KeyOf(override));
  // Who names both says what the global batch is.
  if (said.contains(kDevice) && said.contains(kSteps)) said.emplace(kGlobal);
  return said;
}

// The job's text and files, with no changes yet.
v1::SubmitJobRequest SubmitOf(const JobRecord& job, const std::vector<JobFileRecord>& files) {
  v1::SubmitJobRequest submit;
  submit.set_source_text(job.source_text);
  submit.set_file_name(Shortened(job.file_name, kMaxShown));
  submit.set_project(job.project);
  for (const JobFileRecord& file : files) {
    if (file.sha256.empty()) continue;
    v1::JobFile& added = *submit.add_files();
    added.set_key(file.key);
    added.set_sha256(file.sha256);
    added.set_size(file.size);
    added.set_client_path(WithoutHidden(Shortened(file.client_path, kMaxShown)));
  }
  return submit;
}

// What was changed of the job file, without what the new changes make void.
std::vector<v1::Override> FormerChanges(const JobRecord& job, const KeySet& said) {
  std::vector<v1::Override> former;
  for (const ResolvedRecord& value : job.resolved_values) {
    if (WasOverride(value, job.file_name)) former.push_back(Former(value));
  }
  GiveWay(job, said, former);
  return former;
}

// Whether somebody said how the job was divided (spec::NamesLayout).
bool NamedLayout(const JobRecord& job) {
  return std::ranges::any_of(job.resolved_values, [](const ResolvedRecord& value) {
    if (Followed(value)) return false;
    return spec::IsLayoutKey(value.key) || (value.key == kDeviceMap && value.value != "auto");
  });
}

// On the same GPUs a job stays divided over them as it was, whatever a plan would choose today, and
// whether or not one chose it.
void KeepLayout(const JobRecord& ended, const KeySet& said, std::vector<v1::Override>& former) {
  const bool divided_anew = std::ranges::any_of(said, [](const std::string& key) {
    return key.starts_with(kCopies) || key == kType || key == kVariant || key == kCount ||
           key == kNodes || key == kPerNode || key == kDeviceMap || spec::IsLayoutKey(key);
  });
  if (divided_anew || ended.kind != v1::Job::SFT || NumberOf(ended, kCount) < 2 ||
      NamedLayout(ended)) {
    return;
  }
  const auto is_on = [&](std::string_view key) {
    const ResolvedRecord* value = FormerValue(ended, key);
    return value != nullptr && value->value == "true";
  };
  const bool fsdp = is_on(kFsdp), deepspeed = is_on(kDeepspeed);
  for (const ResolvedRecord& value : ended.resolved_values) {
    if (!spec::IsLayoutKey(value.key)) continue;
    // These would ask for what is off.
    if (value.key == kStrategy && !fsdp) continue;
    if ((value.key == kDeepspeed || value.key == kZeroStage) && !deepspeed) continue;
    former.push_back(
        SetTo(value.key, value.value, fmt::format("{}{}", spec::kKeptLayout, ended.id)));
  }
}

// The changes, former ones first; the global batch stays where nothing is said of the batch.
void AddChanges(const JobRecord& job, const KeySet& said, const std::vector<v1::Override>& former,
                const Overrides& changes, v1::SubmitJobRequest& submit) {
  submit.mutable_overrides()->Assign(former.begin(), former.end());
  submit.mutable_overrides()->MergeFrom(changes);
  if (!said.contains(kGlobal) && !said.contains(kDevice) && !said.contains(kSteps)) {
    DivideBatch(job, submit);
  }
}

}  // namespace

v1::SubmitJobRequest SubmitAgain(const JobRecord& job, const std::vector<JobFileRecord>& files,
                                 const Overrides& changes) {
  v1::SubmitJobRequest submit = SubmitOf(job, files);
  const KeySet said = KeysOf(changes);
  AddChanges(job, said, FormerChanges(job, said), changes, submit);
  return submit;
}

v1::SubmitJobRequest SubmitOfResume(const JobRecord& ended, const std::vector<JobFileRecord>& files,
                                    const v1::ResumeJobRequest& request) {
  v1::SubmitJobRequest submit = SubmitOf(ended, files);
  submit.set_request_id(request.request_id());
  const KeySet said = KeysOf(request.overrides());
  std::vector<v1::Override> former = FormerChanges(ended, said);
  for (const std::string_view key : kKept) {
    const ResolvedRecord* value = FormerValue(ended, key);
    if (value == nullptr || said.contains(key) || !value->origin.starts_with("derived: ")) continue;
    former.push_back(SetTo(key, value->value, ended.id));
  }
  KeepLayout(ended, said, former);
  // Whatever it waited for had ended before it began.
  former.push_back(SetTo("scheduling.after", "", "resume"));
  former.push_back(SetTo("scheduling.hold", "false", "resume"));
  AddChanges(ended, said, former, request.overrides(), submit);
  if (request.has_time_limit_seconds()) {
    *submit.add_overrides() =
        SetTo("scheduling.time_limit",
              DurationText(std::chrono::seconds(request.time_limit_seconds())), "--time-limit");
  }
  return submit;
}

bool WasTaken(const JobRecord& ended, const v1::Override& override) {
  const ResolvedRecord* before = FormerValue(ended, override.key());
  return before != nullptr && spec::AsTakenNow(before->key, before->value) == override.value();
}

void CheckFixedValues(const JobRecord& ended, spec::Resolution& resolution) {
  for (const spec::ResolvedValue& value : resolution.values) {
    const ResolvedRecord* before = FormerValue(ended, value.key);
    if (before == nullptr || spec::AsTakenNow(value.key, before->value) == value.text) continue;
    const auto is_one_of = [&](const auto& keys) {
      return std::find(std::begin(keys), std::end(keys), value.key) != std::end(keys);
    };
    const std::string by = value.overridden ? fmt::format(" (given by {})", value.origin) : "";
    if (is_one_of(kFixed)) {
      resolution.problems.push_back(
          {value.key, value.line,
           fmt::format("is {}, but the checkpoints of {} are of {}: submit a new job for "
                       "another{}",
                       value.text, ended.id, before->value, by)});
    } else if (is_one_of(kRows)) {
      resolution.problems.push_back(
          {value.key, value.line,
           fmt::format("is \"{}\", but a resume has the rows of {}, \"{}\": submit a new job for "
                       "others{}",
                       value.text, ended.id, before->value, by)});
    }
  }
}

}  // namespace sft::server
