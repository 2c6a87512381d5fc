#include "common/base/status.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace sft {
namespace {

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgument("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  SFT_ASSIGN_OR_RETURN(const int half, Half(value));
  SFT_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

absl::Status Check(int value) {
  SFT_RETURN_IF_ERROR(Half(value).status());
  return absl::OkStatus();
}

TEST(StatusMacrosTest, ReturnTheFirstError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Message(Quarter(6).status()), "odd");
  EXPECT_TRUE(Check(2).ok());
  EXPECT_EQ(Check(3).code(), absl::StatusCode::kInvalidArgument);
}

TEST(ErrnoStatusTest, CodesFollowTheErrorNumber) {
  EXPECT_EQ(ErrnoStatus("open x", ENOENT).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrnoStatus("open x", EEXIST).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ErrnoStatus("open x", EACCES).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoStatus("write x", ENOSPC).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus("write x", EDQUOT).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus("read x", EIO).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Message(ErrnoStatus("open x", ENOENT)), "open x: No such file or directory");
}

TEST(AnnotateTest, PutsAPrefixBeforeErrorsOnly) {
  EXPECT_TRUE(Annotate(absl::OkStatus(), "reading").ok());
  const absl::Status status = Annotate(NotFound("no such file"), "reading");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(status), "reading: no such file");
}

}  // namespace
}  // namespace sft
