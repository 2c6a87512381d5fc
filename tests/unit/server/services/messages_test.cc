// The messages against those of the first release, which workers and clients of it still speak: no
// field, enumerator or method may go, change its number, type or presence.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include "common/io/file.h"
#include "sft/v1/cluster_service.pb.h"
#include "sft/v1/data_service.pb.h"
#include "sft/v1/job_service.pb.h"
#include "sft/v1/worker_service.pb.h"

namespace sft {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::DescriptorProto;
using google::protobuf::EnumDescriptorProto;
using google::protobuf::FieldDescriptor;
using google::protobuf::FieldDescriptorProto;
using google::protobuf::FileDescriptorProto;
using google::protobuf::FileDescriptorSet;
using google::protobuf::MethodDescriptor;

const DescriptorPool& Today() {
  // Named so that the linker keeps every file's descriptors.
  (void)v1::GetServerInfoRequest::descriptor();
  (void)v1::StatBlobRequest::descriptor();
  (void)v1::ReadLogRequest::descriptor();
  (void)v1::WorkerMessage::descriptor();
  return *DescriptorPool::generated_pool();
}

std::string FieldProblem(const FieldDescriptorProto& before, const Descriptor& message) {
  const FieldDescriptor* now = message.FindFieldByNumber(before.number());
  const std::string what = message.full_name() + "." + before.name();
  if (now == nullptr) return what + " is gone";
  FieldDescriptorProto after;
  now->CopyTo(&after);
  if (after.name() != before.name()) return what + " is called " + after.name() + " now";
  if (after.type() != before.type() || after.type_name() != before.type_name()) {
    return what + " has another type";
  }
  if (after.label() != before.label()) return what + " is repeated, or is not any more";
  if (after.proto3_optional() != before.proto3_optional()) return what + " has another presence";
  if (after.has_oneof_index() != before.has_oneof_index()) return what + " left or joined a oneof";
  return "";
}

void CheckEnum(const EnumDescriptorProto& before, const std::string& scope,
               std::vector<std::string>& problems) {
  const auto* now = Today().FindEnumTypeByName(scope + "." + before.name());
  for (const auto& value : before.value()) {
    const auto* found = now == nullptr ? nullptr : now->FindValueByNumber(value.number());
    if (found == nullptr || found->name() != value.name()) {
      problems.push_back(scope + "." + before.name() + "." + value.name() + " is gone");
    }
  }
}

void CheckMessage(const DescriptorProto& before, const std::string& scope,
                  std::vector<std::string>& problems) {
  const std::string name = scope + "." + before.name();
  const Descriptor* now = Today().FindMessageTypeByName(name);
  if (now == nullptr) {
    problems.push_back(name + " is gone");
    return;
  }
  for (const FieldDescriptorProto& field : before.field()) {
    const std::string problem = FieldProblem(field, *now);
    if (!problem.empty()) problems.push_back(problem);
  }
  for (const DescriptorProto& nested : before.nested_type()) CheckMessage(nested, name, problems);
  for (const EnumDescriptorProto& nested : before.enum_type()) CheckEnum(nested, name, problems);
}

void CheckFile(const FileDescriptorProto& before, std::vector<std::string>& problems) {
  for (const auto& message : before.message_type()) {
    CheckMessage(message, before.package(), problems);
  }
  for (const auto& enumeration : before.enum_type()) {
    CheckEnum(enumeration, before.package(), problems);
  }
  for (const auto& service : before.service()) {
    for (const auto& method : service.method()) {
      const std::string name = before.package() + "." + service.name() + "." + method.name();
      const MethodDescriptor* now = Today().FindMethodByName(name);
      const bool same = now != nullptr &&
                        "." + now->input_type()->full_name() == method.input_type() &&
                        "." + now->output_type()->full_name() == method.output_type() &&
                        now->client_streaming() == method.client_streaming() &&
                        now->server_streaming() == method.server_streaming();
      if (!same) problems.push_back(name + " is gone or takes or gives something else");
    }
  }
}

FileDescriptorSet FirstRelease() {
  const std::string path =
      std::string(SFT_SOURCE_DIR) + "/tests/golden/upgrade/sft_v1.descriptor_set";
  FileDescriptorSet set;
  EXPECT_TRUE(set.ParseFromString(io::ReadFile(path).value_or("")));
  return set;
}

TEST(MessagesTest, EverythingOfTheFirstReleaseIsThereUnchanged) {
  const FileDescriptorSet before = FirstRelease();
  EXPECT_EQ(before.file_size(), 7);
  std::vector<std::string> problems;
  for (const FileDescriptorProto& file : before.file()) CheckFile(file, problems);
  for (const std::string& problem : problems) ADD_FAILURE() << problem;
}

TEST(MessagesTest, AChangedNumberTypeOrNameIsFound) {
  FileDescriptorProto file;
  file.set_package("sft.v1");
  DescriptorProto& message = *file.add_message_type();
  message.set_name("ReadLogRequest");
  FieldDescriptorProto& field = *message.add_field();
  const auto problems_of = [&](int number, FieldDescriptorProto::Type type, const char* name) {
    field.set_number(number);
    field.set_type(type);
    field.set_name(name);
    field.set_label(FieldDescriptorProto::LABEL_OPTIONAL);
    std::vector<std::string> problems;
    CheckFile(file, problems);
    return problems.size();
  };
  EXPECT_EQ(problems_of(3, FieldDescriptorProto::TYPE_INT32, "rank"), 0u);
  EXPECT_EQ(problems_of(999, FieldDescriptorProto::TYPE_INT32, "rank"), 1u);
  EXPECT_EQ(problems_of(3, FieldDescriptorProto::TYPE_INT64, "rank"), 1u);
  EXPECT_EQ(problems_of(3, FieldDescriptorProto::TYPE_INT32, "rang"), 1u);
  message.set_name("NoSuchMessage");
  EXPECT_EQ(problems_of(3, FieldDescriptorProto::TYPE_INT32, "rank"), 1u);
}

}  // namespace
}  // namespace sft
