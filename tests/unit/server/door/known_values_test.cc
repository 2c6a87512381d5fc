#include "server/door/known_values.h"

#include <gmock/gmock.h>
#include <google/protobuf/dynamic_message.h>

#include <functional>

#include "tests/unit/server/services/secure_server.h"

namespace sft::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using ProtoMessage = google::protobuf::Message;
using testing::HasSubstr;

using Path = std::vector<const FieldDescriptor*>;

// Each way from a message to an enum in it.
void FindEnums(const Descriptor& type, Path& path, std::vector<Path>& found) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    path.push_back(field);
    if (field->enum_type() != nullptr) found.push_back(path);
    if (field->message_type() != nullptr && path.size() < 6) {
      FindEnums(*field->message_type(), path, found);
    }
    path.pop_back();
  }
}

void SetEnum(ProtoMessage& message, const Path& path, size_t at, int value) {
  const auto& reflection = *message.GetReflection();
  const FieldDescriptor* field = path[at];
  if (field->enum_type() != nullptr) {
    field->is_repeated() ? reflection.AddEnumValue(&message, field, value)
                         : reflection.SetEnumValue(&message, field, value);
    return;
  }
  SetEnum(field->is_repeated() ? *reflection.AddMessage(&message, field)
                               : *reflection.MutableMessage(&message, field),
          path, at + 1, value);
}

TEST_F(SecureServerTest, EachEnumOfEachRequestIsChecked) {
  int checked = 0;
  for (const auto& [ours, served] : server_->methods().all()) {
    const std::string name = "sft.v1." + ours;
    const auto* method = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
    ASSERT_NE(method, nullptr) << name;
    const Descriptor& type = *method->input_type();
    // What workers say on their streams is taken piece by piece (core/node_checks.h).
    if (method->client_streaming() && method->server_streaming()) continue;
    Path path;
    std::vector<Path> enums;
    FindEnums(type, path, enums);
    for (const Path& each : enums) {
      const auto set = [&](int value) {
        google::protobuf::DynamicMessageFactory factory;
        const std::unique_ptr<ProtoMessage> request(factory.GetPrototype(&type)->New());
        SetEnum(*request, each, 0, value);
        return CheckKnownValues(*request);
      };
      const absl::Status refused = set(999);
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << name;
      EXPECT_THAT(std::string(refused.message()), HasSubstr(each.back()->name() + ": 999"));
      EXPECT_TRUE(absl::IsInvalidArgument(set(-1))) << name;
      EXPECT_TRUE(set(each.back()->enum_type()->value(1)->number()).ok()) << name;
      // A list of nothing in particular would be a filter that nobody meant.
      EXPECT_EQ(set(0).ok(), !each.back()->is_repeated()) << name;
      ++checked;
    }
  }
  EXPECT_GE(checked, 8);
}

TEST_F(SecureServerTest, AStateThatNobodyKnowsIsNoFilter) {
  v1::ListJobsRequest request;
  request.add_states(static_cast<v1::Job::State>(42));
  v1::ListJobsResponse response;
  grpc::ClientContext context;
  const grpc::Status status =
      v1::JobService::NewStub(With(admin_token_))->ListJobs(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("states: 42 is no value"));
}

}  // namespace
}  // namespace sft::server
