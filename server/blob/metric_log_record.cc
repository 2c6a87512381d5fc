#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>

#include "server/blob/metric_log.h"

// The records of MetricLog.

namespace sft::server {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr char kMetricMagic[4] = {'S', 'F', 'T', 'M'};
constexpr int64_t kHeaderBytes = 8;
enum RecordVersion : uint32_t {
  kPlain = 1,
  kWithPreference = 2,
  kValue = 3,
  kWithTraffic = 4,
  kWithBoth = 5,
};

struct PlainRecord {
  int64_t attempt = 0, step = 0;
  int32_t is_eval = 0;
  float of_limit = 0;
  int64_t total_steps = 0, tokens = 0, gpu_memory_bytes = 0, time_us = 0;
  double loss = 0, lr = 0, grad_norm = 0, tokens_per_second = 0, mfu = 0, val_loss = 0;
  double step_seconds = 0, epoch = 0;
};
static_assert(sizeof(PlainRecord) == MetricLog::kRecordBytes - kHeaderBytes);

struct PreferenceRecord {
  int64_t step = 0;
  int32_t attempt = 0, is_eval = 0;
  int64_t total_steps = 0, tokens = 0, gpu_memory_bytes = 0, time_us = 0;
  double loss = 0;  // val_loss of a validation, which has no other
  double lr = 0, epoch = 0;
  float of_limit = 0, grad_norm = 0, tokens_per_second = 0, mfu = 0, step_seconds = 0;
  PreferenceFigures figures;
  uint32_t unused = 0;
};
static_assert(sizeof(PreferenceRecord) == MetricLog::kRecordBytes - kHeaderBytes);

struct ValueRecord {
  int64_t step = 0;
  int32_t attempt = 0, is_eval = 0;
  int64_t time_us = 0;
  double value = 0;
  char name[MetricLog::kMaxName + 8] = {};  // zeros behind it
};
static_assert(sizeof(ValueRecord) == MetricLog::kRecordBytes - kHeaderBytes);

// The axes that a record names by their place here; a step's others are left out.
constexpr std::string_view kAxes[] = {"",         "world",   "shard",  "replicate",    "tensor",
                                      "pipeline", "context", "expert", "context_nodes"};
// Groups over several of these, "shard+context", are a bit for each, and this one.
constexpr std::string_view kJoined[] = {"pipeline", "replicate", "shard", "context", "tensor"};
constexpr uint8_t kIsJoined = 0x80;
constexpr double kWholeShare = 65535;

struct TrafficRecord {
  int64_t step = 0, tokens = 0, gpu_memory_bytes = 0, time_us = 0;
  double loss = 0;
  int32_t attempt = 0, total_steps = 0;
  float lr = 0, epoch = 0, of_limit = 0, grad_norm = 0, tokens_per_second = 0, mfu = 0;
  float step_seconds = 0;
  PreferenceFigures figures;  // of kWithBoth
  struct Axis {
    uint16_t share = 0;  // of kWholeShare
    uint16_t rate = 0;   // GB/s: the upper half of a float
  } axes[4];
  uint8_t names[4] = {};  // NumberOfAxis
};
static_assert(sizeof(TrafficRecord) == MetricLog::kRecordBytes - kHeaderBytes);

// What a record has for an axis; 0: none.
uint8_t NumberOfAxis(std::string_view axis) {
  if (const auto* const known = std::ranges::find(kAxes, axis); known != std::end(kAxes)) {
    return static_cast<uint8_t>(known - kAxes);
  }
  uint8_t number = kIsJoined;
  for (size_t begin = 0; begin <= axis.size();) {
    const size_t end = std::min(axis.find('+', begin), axis.size());
    const auto* const part = std::ranges::find(kJoined, axis.substr(begin, end - begin));
    if (part == std::end(kJoined)) return 0;
    number |= 1u << (part - kJoined);
    begin = end + 1;
  }
  return number;
}

std::string AxisOfNumber(uint8_t number) {
  if ((number & kIsJoined) == 0) {
    return std::string(number < std::size(kAxes) ? kAxes[number] : kAxes[0]);
  }
  std::string axis;
  for (size_t i = 0; i < std::size(kJoined); ++i) {
    if ((number >> i & 1u) == 0) continue;
    if (!axis.empty()) axis += "+";
    axis += kJoined[i];
  }
  return axis;
}

template <typename Record>
std::string BytesOf(RecordVersion version, const Record& record) {
  std::string bytes(kMetricMagic, sizeof(kMetricMagic));
  bytes.append(reinterpret_cast<const char*>(&version), sizeof(version));
  bytes.append(reinterpret_cast<const char*>(&record), sizeof(record));
  return bytes;
}

template <typename Record>
Record RecordOf(std::string_view bytes) {
  Record record;
  std::memcpy(&record, bytes.data() + kHeaderBytes, sizeof(record));
  return record;
}

// Members that both have and that are of one type.
template <typename From, typename To>
void CopyShared(const From& from, To& to) {
  to.step = from.step;
  to.is_eval = from.is_eval;
  to.total_steps = from.total_steps;
  to.tokens = from.tokens;
  to.gpu_memory_bytes = from.gpu_memory_bytes;
  to.time_us = from.time_us;
  to.lr = from.lr;
  to.epoch = from.epoch;
  to.of_limit = from.of_limit;
}

MetricPoint PointOf(const PlainRecord& record) {
  MetricPoint point;
  CopyShared(record, point);
  point.attempt = record.attempt;
  point.loss = record.loss;
  point.grad_norm = record.grad_norm;
  point.tokens_per_second = record.tokens_per_second;
  point.mfu = record.mfu;
  point.val_loss = record.val_loss;
  point.step_seconds = record.step_seconds;
  return point;
}

MetricPoint PointOf(const PreferenceRecord& record) {
  MetricPoint point;
  CopyShared(record, point);
  point.attempt = record.attempt;
  (record.is_eval != 0 ? point.val_loss : point.loss) = record.loss;
  point.grad_norm = record.grad_norm;
  point.tokens_per_second = record.tokens_per_second;
  point.mfu = record.mfu;
  point.step_seconds = record.step_seconds;
  point.preference = record.figures;
  return point;
}

MetricPoint PointOf(const ValueRecord& record) {
  MetricPoint point;
  point.attempt = record.attempt;
  point.step = record.step;
  point.is_eval = record.is_eval;
  point.time_us = record.time_us;
  point.value = record.value;
  point.name.assign(record.name, strnlen(record.name, sizeof(record.name)));
  return point;
}

uint16_t UpperHalf(double value) {
  constexpr uint32_t kHalf = 1 << 15;
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(static_cast<float>(value)) + kHalf) >> 16);
}

double FromUpperHalf(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

std::string EncodeTraffic(const MetricPoint& point) {
  TrafficRecord record;
  record.step = point.step;
  record.attempt = static_cast<int32_t>(point.attempt);
  record.total_steps = static_cast<int32_t>(
      std::min<int64_t>(point.total_steps, std::numeric_limits<int32_t>::max()));
  record.tokens = point.tokens;
  record.gpu_memory_bytes = point.gpu_memory_bytes;
  record.time_us = point.time_us;
  record.loss = point.loss;
  record.lr = static_cast<float>(point.lr);
  record.epoch = static_cast<float>(point.epoch);
  record.of_limit = point.of_limit;
  record.grad_norm = static_cast<float>(point.grad_norm);
  record.tokens_per_second = static_cast<float>(point.tokens_per_second);
  record.mfu = static_cast<float>(point.mfu);
  record.step_seconds = static_cast<float>(point.step_seconds);
  if (point.preference) record.figures = *point.preference;
  size_t count = 0;
  for (const AxisTraffic& each : point.traffic) {
    const uint8_t number = NumberOfAxis(each.axis);
    if (number == 0 || count == std::size(record.axes)) continue;
    record.names[count] = number;
    record.axes[count].share =
        static_cast<uint16_t>(std::lround(std::clamp(each.exposed_share, 0.0, 1.0) * kWholeShare));
    record.axes[count].rate = UpperHalf(each.gigabytes_per_second);
    ++count;
  }
  return BytesOf(point.preference ? kWithBoth : kWithTraffic, record);
}

MetricPoint PointOf(const TrafficRecord& record, bool prefers) {
  MetricPoint point;
  point.attempt = record.attempt;
  point.step = record.step;
  point.total_steps = record.total_steps;
  point.tokens = record.tokens;
  point.gpu_memory_bytes = record.gpu_memory_bytes;
  point.time_us = record.time_us;
  point.loss = record.loss;
  point.lr = record.lr;
  point.epoch = record.epoch;
  point.of_limit = record.of_limit;
  point.grad_norm = record.grad_norm;
  point.tokens_per_second = record.tokens_per_second;
  point.mfu = record.mfu;
  point.step_seconds = record.step_seconds;
  if (prefers) point.preference = record.figures;
  for (size_t i = 0; i < std::size(record.axes); ++i) {
    const std::string axis = AxisOfNumber(record.names[i]);
    if (axis.empty()) continue;
    point.traffic.push_back({.axis = axis,
                             .exposed_share = record.axes[i].share / kWholeShare,
                             .gigabytes_per_second = FromUpperHalf(record.axes[i].rate)});
  }
  return point;
}

std::string EncodeValue(const MetricPoint& point) {
  ValueRecord record;
  record.step = point.step;
  record.attempt = static_cast<int32_t>(point.attempt);
  record.is_eval = point.is_eval;
  record.time_us = point.time_us;
  record.value = point.value;
  std::memcpy(record.name, point.name.data(), std::min(point.name.size(), MetricLog::kMaxName));
  return BytesOf(kValue, record);
}

std::string EncodePlain(const MetricPoint& point) {
  PlainRecord record;
  CopyShared(point, record);
  record.attempt = point.attempt;
  record.loss = point.loss;
  record.grad_norm = point.grad_norm;
  record.tokens_per_second = point.tokens_per_second;
  record.mfu = point.mfu;
  record.val_loss = point.val_loss;
  record.step_seconds = point.step_seconds;
  return BytesOf(kPlain, record);
}

}  // namespace

std::string EncodeMetric(const MetricPoint& point) {
  if (!point.name.empty()) return EncodeValue(point);
  if (!point.traffic.empty()) return EncodeTraffic(point);
  if (!point.preference) return EncodePlain(point);
  PreferenceRecord record;
  CopyShared(point, record);
  record.attempt = static_cast<int32_t>(point.attempt);
  record.loss = point.is_eval != 0 ? point.val_loss : point.loss;
  record.grad_norm = static_cast<float>(point.grad_norm);
  record.tokens_per_second = static_cast<float>(point.tokens_per_second);
  record.mfu = static_cast<float>(point.mfu);
  record.step_seconds = static_cast<float>(point.step_seconds);
  record.figures = *point.preference;
  return BytesOf(kWithPreference, record);
}

absl::StatusOr<MetricPoint> DecodeMetric(std::string_view record, const std::string& job_id) {
  uint32_t version = 0;
  if (record.size() == MetricLog::kRecordBytes &&
      std::memcmp(record.data(), kMetricMagic, sizeof(kMetricMagic)) == 0) {
    std::memcpy(&version, record.data() + sizeof(kMetricMagic), sizeof(version));
  }
  if (version == kPlain) return PointOf(RecordOf<PlainRecord>(record));
  if (version == kValue) return PointOf(RecordOf<ValueRecord>(record));
  if (version == kWithPreference) return PointOf(RecordOf<PreferenceRecord>(record));
  if (version == kWithTraffic || version == kWithBoth) {
    return PointOf(RecordOf<TrafficRecord>(record), version == kWithBoth);
  }
  return DataLoss(fmt::format("a stored metric of {} cannot be read", job_id));
}

}  // namespace sft::server
