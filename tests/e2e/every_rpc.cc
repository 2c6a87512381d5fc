#include "tests/e2e/every_rpc.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>

#include "common/io/file.h"
#include "common/rpc/channel.h"
#include "sft/v1/admin_service.pb.h"
#include "sft/v1/auth_service.pb.h"
#include "sft/v1/cluster_service.pb.h"
#include "sft/v1/data_service.pb.h"
#include "sft/v1/file_service.pb.h"
#include "sft/v1/job_service.pb.h"
#include "sft/v1/operator_service.pb.h"
#include "sft/v1/scheduling_service.pb.h"
#include "sft/v1/serving_service.pb.h"
#include "sft/v1/storage_service.pb.h"
#include "sft/v1/web_service.pb.h"
#include "sft/v1/webhook_service.pb.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::testing_support {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

constexpr std::chrono::seconds kDeadline{10};

std::vector<const MethodDescriptor*> Methods() {
  // Named so that the linker keeps every file's descriptors.
  (void)v1::BackupRequest::descriptor();
  (void)v1::WhoAmIRequest::descriptor();
  (void)v1::GetServerInfoRequest::descriptor();
  (void)v1::StatBlobRequest::descriptor();
  (void)v1::GetFileRequest::descriptor();
  (void)v1::ReadLogRequest::descriptor();
  (void)v1::GetStatsRequest::descriptor();
  (void)v1::HoldJobRequest::descriptor();
  (void)v1::GetTokenizerRequest::descriptor();
  (void)v1::GetStorageRequest::descriptor();
  (void)v1::Webhook::descriptor();
  (void)v1::CreateCodeRequest::descriptor();
  (void)v1::WorkerMessage::descriptor();
  std::vector<const MethodDescriptor*> methods;
  const auto files = io::ListDir(std::string(SFT_SOURCE_DIR) + "/proto/sft/v1");
  for (const std::string& name : files.value_or(std::vector<std::string>())) {
    if (!name.ends_with("_service.proto")) continue;
    const auto* file =
        google::protobuf::DescriptorPool::generated_pool()->FindFileByName("sft/v1/" + name);
    if (file == nullptr) {
      fmt::print(stderr, "{} is not linked in: name one of its messages in every_rpc.cc\n", name);
      std::abort();
    }
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j) {
        methods.push_back(file->service(i)->method(j));
      }
    }
  }
  return methods;
}

std::string PathOf(const MethodDescriptor& method) {
  return fmt::format("/{}/{}", method.service()->full_name(), method.name());
}

void Fill(Message& message, const std::map<std::string, std::string>& fields, int depth) {
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const auto* oneof = field->containing_oneof();
    if (field->is_repeated() || (oneof != nullptr && reflection->HasOneof(message, oneof)))
      continue;
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      if (const auto found = fields.find(field->name()); found != fields.end()) {
        reflection->SetString(&message, field, found->second);
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && depth > 0) {
      Fill(*reflection->MutableMessage(&message, field), fields, depth - 1);
    }
  }
}

// One request, all answers; any kind of call is a stream of both to the generic stub.
class OneCall {
 public:
  OneCall(grpc::GenericStub& stub, const std::string& method, const std::string& request) {
    rpc::SetDeadline(context_, kDeadline);
    stream_ = stub.PrepareCall(&context_, method, &queue_);
    stream_->StartCall(Tag());
    if (Next()) {
      grpc::Slice slice(request);
      stream_->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), Tag());
      if (Next()) ReadAll();
    }
    stream_->Finish(&status, Tag());
    (void)Next();
  }

  grpc::Status status;
  std::string answers;

 private:
  void* Tag() { return this; }
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }
  void ReadAll() {
    while (true) {
      grpc::ByteBuffer bytes;
      stream_->Read(&bytes, Tag());
      if (!Next()) return;
      std::vector<grpc::Slice> slices;
      if (!bytes.Dump(&slices).ok()) return;
      for (const grpc::Slice& slice : slices) {
        answers.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
    }
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

}  // namespace

std::vector<std::string> EveryRpc() {
  std::vector<std::string> names;
  for (const MethodDescriptor* method : Methods()) names.push_back(PathOf(*method));
  return names;
}

std::vector<Outcome> CallEveryRpc(const std::shared_ptr<grpc::Channel>& channel,
                                  const std::map<std::string, std::string>& fields) {
  grpc::GenericStub stub(channel);
  std::vector<Outcome> outcomes;
  for (const MethodDescriptor* method : Methods()) {
    const auto* prototype =
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(method->input_type());
    const std::unique_ptr<Message> request(prototype->New());
    Fill(*request, fields, /*depth=*/2);
    OneCall call(stub, PathOf(*method), request->SerializeAsString());
    outcomes.push_back({PathOf(*method), call.status.error_code(), call.status.error_message(),
                        std::move(call.answers)});
  }
  return outcomes;
}

}  // namespace sft::testing_support
