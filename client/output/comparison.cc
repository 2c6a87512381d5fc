#include "client/output/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "client/output/format.h"
#include "common/base/json.h"

namespace sft::client {
namespace {

constexpr size_t kMeanOf = 10;
const std::set<std::string>& Unimportant() {
  // Jobs of two days differ in the last, whether their templates print it or not.
  static const std::set<std::string> keys = {"/job/name", "/job/output_dir", "/data/template_date"};
  return keys;
}

template <typename T>
T ValueAt(const Json& json, const char* pointer, T fallback) {
  const Json::json_pointer key(pointer);
  if (!json.is_object() || !json.contains(key)) return fallback;
  const Json& value = json.at(key);
  if constexpr (std::is_same_v<T, std::string>) {
    return value.is_string() ? value.get<T>() : fallback;
  } else if constexpr (std::is_same_v<T, bool>) {
    return value.is_boolean() ? value.get<T>() : fallback;
  } else {
    return value.is_number() ? value.get<T>() : fallback;
  }
}

std::string MethodOf(const Json& resolved) {
  const auto mode = ValueAt<std::string>(resolved, "/training/mode", "");
  if (mode != "lora") return mode == "full_finetune" ? "full" : mode;
  const char* kind = ValueAt(resolved, "/training/use_qlora", false) ? "qlora" : "lora";
  return fmt::format("{} r={}", kind, ValueAt<int64_t>(resolved, "/lora/r", 0));
}

double MedianSpeed(const std::vector<v1::Metric>& steps) {
  std::vector<double> speeds;
  for (size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) {
    speeds.push_back(steps[i].tokens_per_second());
  }
  if (speeds.empty()) return 0;
  const auto middle = speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2);
  std::nth_element(speeds.begin(), middle, speeds.end());
  return *middle;
}

}  // namespace

RunFigures FiguresOf(const v1::Job& job, const std::vector<v1::Metric>& curve, double now) {
  RunFigures run;
  run.job = job;
  run.resolved = ParseOrderedJson(job.resolved_json());
  if (!run.resolved.is_object()) run.resolved = Json::object();
  run.global_batch =
      std::max<int64_t>(1, ValueAt<int64_t>(run.resolved, "/hyperparameters/global_batch", 1));
  run.method = MethodOf(run.resolved);
  for (const v1::Metric& metric : curve) {
    (metric.is_eval() ? run.validations : run.steps).push_back(metric);
    if (metric.is_eval()) continue;
    // A point stands for all steps since the previous one.
    run.tokens += metric.tokens() * (metric.step() - run.last_step);
    run.last_step = metric.step();
    run.gpu_memory_bytes = std::max(run.gpu_memory_bytes, metric.gpu_memory_bytes());
  }
  run.samples = run.last_step * run.global_batch;
  run.tokens_per_second = MedianSpeed(run.steps);
  if (job.start_time().seconds() > 0) {
    const double end = job.end_time().seconds() > 0 ? Seconds(job.end_time()) : now;
    run.wall_seconds = std::max(0.0, end - Seconds(job.start_time()));
  }
  return run;
}

LossAt LossAtSamples(const RunFigures& run, const CommonSamples& common) {
  LossAt at;
  const auto end = std::find_if(run.steps.begin(), run.steps.end(), [&](const v1::Metric& metric) {
    return metric.step() * run.global_batch > common.to;
  });
  const auto seen = static_cast<size_t>(end - run.steps.begin());
  if (seen == 0) return at;
  at.known = true;
  at.step = run.steps[seen - 1].step();
  at.loss = run.steps[seen - 1].loss();
  size_t count = 0;
  for (size_t i = seen; i > 0 && count < kMeanOf; --i) {
    const v1::Metric& metric = run.steps[i - 1];
    if (count > 0 && (metric.step() - 1) * run.global_batch < common.from) break;
    at.mean += metric.loss();
    ++count;
  }
  at.mean /= static_cast<double>(count);
  return at;
}

CommonSamples CommonSamplesOf(const std::vector<RunFigures>& runs) {
  CommonSamples common;
  if (!runs.empty()) common.to = runs.front().samples;
  for (const RunFigures& run : runs) {
    common.to = std::min(common.to, run.samples);
    if (run.steps.empty()) continue;
    common.from = std::max(common.from, (run.steps.front().step() - 1) * run.global_batch);
  }
  return common;
}

std::vector<std::pair<std::string, std::vector<std::string>>> Differences(
    const std::vector<RunFigures>& runs) {
  std::vector<Json> flat;
  std::set<std::string> keys;
  for (const RunFigures& run : runs) {
    flat.push_back(run.resolved.empty() ? Json::object() : run.resolved.flatten());
    for (const auto& [key, value] : flat.back().items()) keys.insert(key);
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> differences;
  for (const std::string& key : keys) {
    if (Unimportant().contains(key)) continue;
    std::vector<std::string> values;
    for (const Json& json : flat) {
      const Json value = json.value(key, Json());
      values.push_back(value.is_null()     ? "-"
                       : value.is_string() ? value.get<std::string>()
                                           : DumpJson(value));
    }
    if (std::all_of(values.begin(), values.end(), [&](const auto& v) { return v == values[0]; })) {
      continue;
    }
    std::string name = key.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    differences.emplace_back(std::move(name), std::move(values));
  }
  return differences;
}

}  // namespace sft::client
