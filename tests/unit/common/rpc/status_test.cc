#include "common/rpc/status.h"

#include <gtest/gtest.h>

namespace sft::rpc {
namespace {

TEST(RpcStatusTest, CodesAndMessagesSurviveTheWire) {
  for (const absl::Status& status :
       {NotFound("no job x"), FailedPrecondition("a"), ResourceExhausted("disk"), Unavailable("u"),
        OutOfRange("o"), Aborted("ab"), DataLoss("d"), PermissionDenied("p"), absl::OkStatus()}) {
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
}

TEST(RpcStatusTest, ViolationsSurviveTheWire) {
  const grpc::Status sent =
      ToGrpc(BadRequest("2 problems", {{"a.b", "line 3: must be > 0"}, {"c", "unknown"}}));
  const grpc::Status received(sent.error_code(), sent.error_message(), sent.error_details());
  EXPECT_EQ(received.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const std::vector<FieldViolation> violations = ViolationsOf(received);
  ASSERT_EQ(violations.size(), 2u);
  EXPECT_EQ(violations[0].field, "a.b");
  EXPECT_EQ(violations[0].description, "line 3: must be > 0");
  EXPECT_EQ(ReasonOf(received), "");
}

// gRPC accepts 8 KiB of metadata: a longer status arrives as an error about metadata.
TEST(RpcStatusTest, ALongStatusIsCutToWhatMetadataHolds) {
  const std::string umlauts(30'000, '\xc3');
  for (const std::string& text : {std::string(30'000, 'x'), std::string(30'000, '\n'), umlauts}) {
    EXPECT_LT(ToGrpc(NotFound(text)).error_message().size(), 4100u);
    const grpc::Status bad =
        ToGrpc(BadRequest(text, std::vector<FieldViolation>(500, {text, text})));
    EXPECT_LT(bad.error_message().size(), 1210u);
    EXPECT_LT(1210 + bad.error_details().size() * 4 / 3, 8000u);
    const std::vector<FieldViolation> violations = ViolationsOf(bad);
    ASSERT_GT(violations.size(), 1u);
    EXPECT_NE(violations.back().description.find("more; a dry run shows all"), std::string::npos);
  }
  EXPECT_EQ(ToGrpc(NotFound(std::string(3000, 'x'))).error_message().size(), 3000u);
}

TEST(RpcStatusTest, AReasonSurvivesTheWire) {
  const grpc::Status status =
      ToGrpc(WithReason(FailedPrecondition("upload it first"), "FILE_NOT_UPLOADED"));
  EXPECT_EQ(ReasonOf(status), "FILE_NOT_UPLOADED");
  EXPECT_EQ(status.error_message(), "upload it first");
  EXPECT_TRUE(ViolationsOf(status).empty());
}

TEST(RpcStatusTest, ForeignDetailsAreIgnored) {
  const grpc::Status status(grpc::StatusCode::UNAVAILABLE, "x", "\xff\xfe not a message");
  EXPECT_TRUE(ViolationsOf(status).empty());
  EXPECT_EQ(ReasonOf(status), "");
}

}  // namespace
}  // namespace sft::rpc
