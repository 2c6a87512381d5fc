#include <cmath>

#include "common/base/clock.h"
#include "server/blob/metric_log.h"
#include "tests/unit/server/services/services_fixture.h"

namespace sft::server {
namespace {

constexpr int64_t kSecond = 1'000'000, kBegin = int64_t{1'700'000'000} * kSecond;

class JobCurveTest : public ServicesTest {
 protected:
  JobCurveTest() : metrics_(dir_ + "/metrics") {
    v1::UploadBlobResponse uploaded;
    EXPECT_TRUE(Upload(kTwoRows, &uploaded).ok());
    v1::Job job;
    EXPECT_TRUE(Submit(kTwoRowJob, &job, "r-1").ok());
    name_ = job.name();
    id_ = name_.substr(name_.rfind('/') + 1);
  }

  static MetricPoint Step(int64_t attempt, int64_t step, double loss) {
    MetricPoint point;
    point.attempt = attempt;
    point.step = step;
    point.tokens = 10;
    point.step_seconds = 2;
    point.time_us = kBegin + step * 2 * kSecond;
    point.loss = loss;
    point.gpu_memory_bytes = 5;
    return point;
  }
  void Store(const std::vector<MetricPoint>& points) {
    const absl::Status stored = metrics_.Append(id_, points);
    ASSERT_TRUE(stored.ok()) << stored;
  }
  grpc::Status Ask(v1::GetCurveRequest request, v1::Curve* curve) {
    request.set_name(name_);
    grpc::ClientContext context;
    rpc::SetDeadline(context, rpc::kUnaryDeadline);
    return jobs_->GetCurve(&context, request, curve);
  }
  v1::Curve Get(const v1::GetCurveRequest& request) {
    v1::Curve curve;
    const grpc::Status status = Ask(request, &curve);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return curve;
  }
  // "loss 1:2 2:1; val_loss 2:3", with the rank of those that have one.
  static std::string Text(const v1::Curve& curve) {
    std::string text;
    for (const v1::CurveSeries& series : curve.series()) {
      text += (text.empty() ? "" : "; ") + series.name();
      if (series.name().starts_with("rank_")) text += "@" + std::to_string(series.rank());
      for (int i = 0; i < series.x_size(); ++i) {
        std::ostringstream out;
        out << " " << series.x(i) << ":" << series.y(i);
        text += out.str();
      }
    }
    return text;
  }

  MetricLog metrics_;
  std::string name_, id_;
};

TEST_F(JobCurveTest, GivesWhatIsAskedForOverStepsTokensOrTime) {
  std::vector<MetricPoint> points = {Step(1, 1, 4), Step(1, 2, 3)};
  MetricPoint validation = points.back();
  validation.is_eval = 1;
  validation.val_loss = 3.5;
  MetricPoint graded = validation;
  graded.is_eval = 2;
  graded.name = "val.f1";
  graded.value = 50;
  points.insert(points.end(), {validation, graded, Step(1, 4, 2)});
  Store(points);
  v1::GetCurveRequest request;
  request.add_values("val.f1");
  request.add_values("val_loss");
  request.add_values("loss");
  const v1::Curve curve = Get(request);
  EXPECT_EQ(Text(curve), "loss 1:4 2:3 4:2; val.f1 2:50; val_loss 2:3.5");
  EXPECT_EQ(curve.next_index(), 5);
  EXPECT_EQ(curve.first_x(), 1);
  EXPECT_EQ(curve.last_x(), 4);
  EXPECT_EQ(curve.last_step(), 4);
  EXPECT_EQ(curve.last_tokens(), 40) << "the last point stands for two steps";
  EXPECT_EQ(curve.begin_time().seconds(), kBegin / kSecond);
  request.set_axis(v1::GetCurveRequest::TOKENS);
  EXPECT_EQ(Text(Get(request)), "loss 10:4 20:3 40:2; val.f1 20:50; val_loss 20:3.5");
  request.set_axis(v1::GetCurveRequest::SECONDS);
  EXPECT_EQ(Text(Get(request)), "loss 2:4 4:3 8:2; val.f1 4:50; val_loss 4:3.5");
  const v1::Curve all = Get({});
  EXPECT_EQ(all.series_size(), 9) << Text(all) << ": neither preferences nor ranks";
}

TEST_F(JobCurveTest, LeavesOutWhatALaterAttemptRanAgain) {
  Store({Step(1, 1, 5), Step(1, 2, 4), Step(1, 3, 9), Step(2, 3, 3), Step(2, 4, 2)});
  v1::GetCurveRequest request;
  request.add_values("loss");
  EXPECT_EQ(Text(Get(request)), "loss 1:5 2:4 3:3 4:2");
  EXPECT_EQ(Get(request).next_index(), 5);
  EXPECT_EQ(Get(request).last_attempt(), 2);
  EXPECT_EQ(Get(request).last_tokens(), 40);
}

TEST_F(JobCurveTest, RanksStandWhereTheirStepsAre) {
  std::vector<MetricPoint> points;
  for (int step = 2; step <= 8; step += 2) points.push_back(Step(1, step, 1));
  Store(points);
  ASSERT_TRUE(metrics_.ranks().Append(id_, 0, {{1, 1, 2, 0.5, 10}, {1, 1, 4, 0.25, 11}}).ok());
  ASSERT_TRUE(metrics_.ranks().Append(id_, 1, {{1, 1, 2, 1.5, 20}, {1, 1, 9, 9, 9}}).ok());
  v1::GetCurveRequest request;
  request.add_values("rank_loss");
  request.add_values("rank_memory");
  EXPECT_EQ(Text(Get(request)),
            "rank_loss@0 2:0.5 4:0.25; rank_loss@1 2:1.5; rank_memory@0 2:10 4:11; "
            "rank_memory@1 2:20")
      << "step 9 of rank 1 is not in the curve yet";
  request.set_axis(v1::GetCurveRequest::TOKENS);
  EXPECT_EQ(Text(Get(request)),
            "rank_loss@0 20:0.5 40:0.25; rank_loss@1 20:1.5; rank_memory@0 20:10 40:11; "
            "rank_memory@1 20:20");
}

TEST_F(JobCurveTest, RefusesWhatMakesNoSense) {
  const auto refuse = [&](const v1::GetCurveRequest& request, const std::string& part) {
    v1::Curve curve;
    const grpc::Status status = Ask(request, &curve);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find(part), std::string::npos) << status.error_message();
  };
  v1::GetCurveRequest request;
  request.add_values("los");
  refuse(request, "there is no \"los\": there are loss, lr,");
  request.Clear();
  request.set_max_parts(4001);
  refuse(request, "max_parts: 1 to 4000");
  request.set_max_parts(-1);
  refuse(request, "max_parts");
  request.Clear();
  request.set_begin(5);
  request.set_end(4);
  refuse(request, "begin is beyond end");
  request.set_begin(std::nan(""));
  refuse(request, "begin");
  request.Clear();
  request.set_half_life(-1);
  refuse(request, "half_life");
  request.Clear();
  request.set_axis(static_cast<v1::GetCurveRequest::Axis>(7));
  refuse(request, "axis");
  EXPECT_EQ(Get({}).series_size(), 0) << "a job without points";
}

TEST_F(JobCurveTest, AHundredThousandPointsAreGivenAtOnceWithTheirSpikes) {
  std::vector<MetricPoint> points;
  for (int step = 1; step <= 100'000; ++step) {
    points.push_back(Step(1, step, 1 + 0.1 * std::sin(step)));
  }
  points[54'321].loss = 9.5;
  points[77'777].loss = std::nan("");
  Store(points);
  const MonoTime begin = Clock::Real().Mono();
  const v1::Curve curve = Get({});
  const double seconds = std::chrono::duration<double>(Clock::Real().Mono() - begin).count();
  std::printf("a curve of 100,000 points, all values: %.3f s, %.0f kB\n", seconds,
              static_cast<double>(curve.ByteSizeLong()) / 1000);
  EXPECT_LT(seconds, 1);
  EXPECT_LT(curve.ByteSizeLong(), 300'000u);
  const v1::CurveSeries& loss = curve.series(0);
  EXPECT_EQ(loss.points(), 100'000);
  EXPECT_LE(loss.parts(), 1000);
  EXPECT_GE(loss.parts(), 500);
  EXPECT_EQ(*std::ranges::max_element(loss.y(), std::less<>(),
                                      [](float y) { return std::isnan(y) ? 0 : y; }),
            9.5F);
  EXPECT_TRUE(std::ranges::any_of(loss.y(), [](float y) { return std::isnan(y); }));
  v1::GetCurveRequest near;
  near.add_values("loss");
  near.set_begin(54'000);
  near.set_end(55'000);
  const v1::Curve zoomed = Get(near);
  EXPECT_EQ(zoomed.series(0).points(), 1003);
  EXPECT_EQ(zoomed.series(0).parts(), 0);
  EXPECT_EQ(zoomed.series(0).x(0), 53'999);
  EXPECT_EQ(zoomed.series(0).x(1002), 55'001);
}

}  // namespace
}  // namespace sft::server
