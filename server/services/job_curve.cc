// A job's curves, to be drawn.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "server/blob/drawn_series.h"
#include "server/core/convert.h"
#include "server/services/job_service.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

constexpr int kDefaultParts = 1000, kMaxParts = 4000;
// Of all ranks together: an answer stays far below what a message may hold.
constexpr int kMaxRankParts = 100'000, kMinRankParts = 16;
// Points read at a time.
constexpr int kBatch = 4096;

constexpr char kValLoss[] = "val_loss", kRankLoss[] = "rank_loss", kRankMemory[] = "rank_memory";
constexpr std::string_view kGraded = "val.";
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// A value of a step, NaN for none.
struct StepValue {
  const char* name;
  double (*of)(const MetricPoint&);
  bool of_preferences = false;
};
constexpr StepValue kStepValues[] = {
    {"loss", [](const MetricPoint& p) { return p.loss; }},
    {"lr", [](const MetricPoint& p) { return p.lr; }},
    {"grad_norm", [](const MetricPoint& p) { return p.grad_norm; }},
    {"tokens_per_second", [](const MetricPoint& p) { return p.tokens_per_second; }},
    {"mfu", [](const MetricPoint& p) { return p.mfu; }},
    {"of_limit", [](const MetricPoint& p) { return double{p.of_limit}; }},
    {"gpu_memory_bytes",
     [](const MetricPoint& p) { return static_cast<double>(p.gpu_memory_bytes); }},
    {"margin",
     [](const MetricPoint& p) {
       return p.preference ? double{p.preference->rewards_chosen} - p.preference->rewards_rejected
                           : kNone;
     },
     true},
    {"accuracy",
     [](const MetricPoint& p) {
       return p.preference ? double{p.preference->rewards_accuracies} : kNone;
     },
     true}};

// What is asked for, checked.
struct Asked {
  std::set<std::string> values;  // empty: all but those of ranks
  v1::GetCurveRequest::Axis axis = v1::GetCurveRequest::STEP;
  DrawnSeries::Options drawn;
  bool answers = false;  // its steps are answers

  bool Wants(const std::string& name) const { return values.empty() || values.contains(name); }
  bool WantsRanks() const { return values.contains(kRankLoss) || values.contains(kRankMemory); }
};

absl::StatusOr<Asked> AskedOf(const v1::GetCurveRequest& request) {
  Asked asked{.values = {request.values().begin(), request.values().end()},
              .axis = request.axis(),
              .drawn = {.max_parts = request.max_parts() == 0 ? kDefaultParts : request.max_parts(),
                        .half_life = request.half_life()}};
  if (request.has_begin()) asked.drawn.begin = request.begin();
  if (request.has_end()) asked.drawn.end = request.end();
  std::vector<std::string> names;
  for (const StepValue& value : kStepValues) names.emplace_back(value.name);
  names.insert(names.end(), {kValLoss, kRankLoss, kRankMemory});
  for (const std::string& value : asked.values) {
    if (value.starts_with(kGraded) || std::ranges::find(names, value) != names.end()) continue;
    return InvalidArgument(fmt::format("values: there is no \"{}\": there are {} and {}NAME",
                                       value.substr(0, 80), fmt::join(names, ", "), kGraded));
  }
  if (!v1::GetCurveRequest::Axis_IsValid(request.axis())) {
    return InvalidArgument("axis: STEP, TOKENS or SECONDS");
  }
  if (asked.drawn.max_parts < 1 || asked.drawn.max_parts > kMaxParts) {
    return InvalidArgument(
        fmt::format("max_parts: 1 to {}, or 0 for {}", kMaxParts, kDefaultParts));
  }
  // Not a number fails too.
  if (!(asked.drawn.begin <= asked.drawn.end)) {
    return InvalidArgument("begin is beyond end: points are given from begin to end");
  }
  if (!(asked.drawn.half_life >= 0) || std::isinf(asked.drawn.half_life)) {
    return InvalidArgument("half_life: a number of points, or 0 for none");
  }
  return asked;
}

// Takes a job's points one after the other, and gives its curves.
class CurveMaker {
 public:
  CurveMaker(const Asked& asked, std::map<int, std::vector<RankPoint>> ranks)
      : asked_(asked), ranks_(std::move(ranks)) {
    for (const StepValue& value : kStepValues) {
      if (asked.Wants(value.name)) steps_.emplace_back(value, DrawnSeries(asked.drawn));
    }
    for (const auto& [rank, points] : ranks_) {
      for (const RankPoint& point : points) rank_x_[point.step] = kNone;
    }
    next_rank_x_ = rank_x_.begin();
  }

  void Add(const MetricPoint& point) {
    if (begin_us_ == 0) begin_us_ = point.time_us - static_cast<int64_t>(1e6 * point.step_seconds);
    last_attempt_ = point.attempt;
    if (point.is_eval != 0) {
      const std::string name = point.name.empty() ? kValLoss : point.name;
      if (!asked_.Wants(name)) return;
      validations_.try_emplace(name, asked_.drawn)
          .first->second.Add(XOf(point), point.name.empty() ? point.val_loss : point.value);
      return;
    }
    // A point stands for all steps since the one before; one of answers has the tokens of all.
    tokens_ += point.tokens * (asked_.answers ? 1 : point.step - last_step_);
    last_step_ = point.step;
    const double x = XOf(point);
    if (std::isnan(first_x_)) first_x_ = x;
    for (; next_rank_x_ != rank_x_.end() && next_rank_x_->first <= point.step; ++next_rank_x_) {
      next_rank_x_->second = x;
    }
    for (auto& [value, series] : steps_) {
      if (value.of_preferences && !point.preference) continue;
      series.Add(x, value.of(point));
    }
  }

  v1::Curve Finish(int64_t next_index) && {
    v1::Curve curve;
    for (const auto& [value, series] : steps_) AddTo(curve, value.name, 0, series);
    for (const auto& [name, series] : validations_) AddTo(curve, name, 0, series);
    if (asked_.WantsRanks()) AddRanks(curve);
    curve.set_next_index(next_index);
    if (!std::isnan(first_x_)) curve.set_first_x(first_x_);
    curve.set_last_x(x_);
    curve.set_last_step(last_step_);
    curve.set_last_tokens(tokens_);
    curve.set_last_attempt(static_cast<int32_t>(last_attempt_));
    if (begin_us_ != 0) *curve.mutable_begin_time() = ToTimestamp(begin_us_);
    return curve;
  }

 private:
  // Where a point stands on the axis, never before the last one.
  double XOf(const MetricPoint& point) {
    double x = static_cast<double>(point.step);
    if (asked_.axis == v1::GetCurveRequest::TOKENS) x = static_cast<double>(tokens_);
    if (asked_.axis == v1::GetCurveRequest::SECONDS) {
      x = static_cast<double>(point.time_us - begin_us_) / 1e6;
    }
    return x_ = std::max(x_, x);
  }

  static void AddTo(v1::Curve& curve, const std::string& name, int rank,
                    const DrawnSeries& series) {
    const DrawnSeries::Drawing drawing = series.Draw();
    if (drawing.points == 0) return;
    v1::CurveSeries& added = *curve.add_series();
    added.set_name(name);
    added.set_rank(rank);
    added.mutable_x()->Add(drawing.x.begin(), drawing.x.end());
    added.mutable_y()->Add(drawing.y.begin(), drawing.y.end());
    added.set_points(drawing.points);
    added.set_parts(drawing.parts);
  }

  void AddRanks(v1::Curve& curve) {
    DrawnSeries::Options options = asked_.drawn;
    const int each = kMaxRankParts / std::max(1, static_cast<int>(ranks_.size()));
    options.max_parts = std::min(options.max_parts, std::max(kMinRankParts, each));
    for (const char* name : {kRankLoss, kRankMemory}) {
      if (!asked_.values.contains(name)) continue;
      for (const auto& [rank, points] : ranks_) {
        DrawnSeries series(options);
        for (const RankPoint& point : points) {
          // Told before rank 0 told of that step: the curve is not there yet.
          const double x = rank_x_[point.step];
          if (std::isnan(x)) break;
          series.Add(x, name == kRankLoss ? point.loss : static_cast<double>(point.memory_bytes));
        }
        AddTo(curve, name, rank, series);
      }
    }
  }

  const Asked& asked_;
  std::map<int, std::vector<RankPoint>> ranks_;
  std::map<int64_t, double> rank_x_;  // of steps that ranks tell of; NaN: not known
  std::map<int64_t, double>::iterator next_rank_x_;
  std::vector<std::pair<StepValue, DrawnSeries>> steps_;
  // "val.f1" comes before "val_loss".
  std::map<std::string, DrawnSeries> validations_;
  int64_t begin_us_ = 0;  // of the first point; 0: there was none
  int64_t last_step_ = 0, last_attempt_ = 0, tokens_ = 0;
  double first_x_ = kNone, x_ = 0;
};

}  // namespace

absl::StatusOr<v1::Curve> JobService::GetCurve(CallContext&, const v1::GetCurveRequest& request) {
  SFT_ASSIGN_OR_RETURN(Asked asked, AskedOf(request));
  SFT_ASSIGN_OR_RETURN(const v1::Job job, jobs_.Get(request.name()));
  asked.answers = job.kind() == v1::Job::GENERATE || job.kind() == v1::Job::EVALUATE;
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(request.name()));
  MetricLog& metrics = ingest_.metrics();
  std::map<int, std::vector<RankPoint>> ranks;
  if (asked.WantsRanks()) {
    SFT_ASSIGN_OR_RETURN(ranks, metrics.ranks().Read(ref.id));
  }
  CurveMaker maker(asked, std::move(ranks));
  int64_t index = 0;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const Ingest::CurvePart part,
                         ingest_.ReadCurve(ref.id, index, kBatch, /*all_attempts=*/false));
    if (part.next_index == index) break;
    index = part.next_index;
    for (const MetricPoint& point : part.points) maker.Add(point);
  }
  return std::move(maker).Finish(index);
}

}  // namespace sft::server
