// Every text of every answer of a server, with what would change a terminal, in every command.
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "client/app/app.h"
#include "common/base/plain_text.h"
#include "common/base/utf8.h"
#include "common/base/version.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using namespace std::string_view_literals;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// Colours, a title, the same by C1 controls, an override of direction, a line's begin, NUL,
// invisible.
constexpr std::string_view kHostile =
    "\x1b[2J\x1b]0;t\x07\xc2\x9b\x33\x31m\xe2\x80\xae\xe2\x81\xa6\xe2\x80\x8f\r\b\x7f\0\xe2\x80\x8b"
    "\xf3\xa0\x81\x81模型🙂\n"sv;

using Shown = std::map<std::string, std::set<std::string>>;

std::string Marked(const FieldDescriptor& field) {
  return fmt::format("<{}.{}>", field.containing_type()->name(), field.name());
}

// Fills all of a message: texts say which field they are of.
class Filler {
 public:
  explicit Filler(int enums) : enums_(enums) {}

  void Fill(google::protobuf::Message& message, int depth = 0) const {
    if (message.GetDescriptor()->full_name() == "google.protobuf.Timestamp") {
      const auto& field = *message.GetDescriptor()->FindFieldByName("seconds");
      message.GetReflection()->SetInt64(&message, &field, 1'790'000'000);
      return;
    }
    const Descriptor& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      for (int times = type.field(i)->is_repeated() ? 2 : 1; times > 0; --times) {
        Set(message, *type.field(i), depth);
      }
    }
  }

 private:
  void Set(google::protobuf::Message& message, const FieldDescriptor& field, int depth) const {
    const auto& reflection = *message.GetReflection();
    const auto put = [&](auto set, auto add, const auto& value) {
      field.is_repeated() ? (reflection.*add)(&message, &field, value)
                          : (reflection.*set)(&message, &field, value);
    };
    using R = google::protobuf::Reflection;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        if (field.name() == "next_page_token") return;
        if (field.is_repeated()) {
          reflection.AddString(&message, &field, TextOf(field));
        } else {
          reflection.SetString(&message, &field, TextOf(field));
        }
        return;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth == 5) return;
        return Fill(field.is_repeated() ? *reflection.AddMessage(&message, &field)
                                        : *reflection.MutableMessage(&message, &field),
                    depth + 1);
      case FieldDescriptor::CPPTYPE_ENUM: {
        const auto& values = *field.enum_type();
        return put(&R::SetEnum, &R::AddEnum, values.value(enums_ % values.value_count()));
      }
      case FieldDescriptor::CPPTYPE_INT32:
        return put(&R::SetInt32, &R::AddInt32, field.name().ends_with("protocol") ? kProtocol : 1);
      case FieldDescriptor::CPPTYPE_INT64:
        return put(&R::SetInt64, &R::AddInt64, int64_t{1});
      case FieldDescriptor::CPPTYPE_UINT32:
        return put(&R::SetUInt32, &R::AddUInt32, 1U);
      case FieldDescriptor::CPPTYPE_UINT64:
        return put(&R::SetUInt64, &R::AddUInt64, uint64_t{1});
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return put(&R::SetDouble, &R::AddDouble, 0.5);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return put(&R::SetFloat, &R::AddFloat, 0.5F);
      case FieldDescriptor::CPPTYPE_BOOL:
        return put(&R::SetBool, &R::AddBool, field.name() != "more");
    }
  }

  static std::string TextOf(const FieldDescriptor& field) {
    if (field.name() == "version") return std::string(kVersion);
    const std::string text = fmt::format("{}{}", Marked(field), kHostile);
    if (field.type() == FieldDescriptor::TYPE_BYTES) return text + "\xff\n";
    // What the server makes: clients cut names at their slashes.
    return field.name() == "name" ? "projects/default/jobs/" + text : text;
  }

  const int enums_;
};

// Answers every method of the service: one filled message.
class HostileServer final : public grpc::CallbackGenericService {
 public:
  HostileServer() {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
  }
  ~HostileServer() override { server_->Shutdown(); }
  std::shared_ptr<grpc::Channel> Channel() { return server_->InProcessChannel({}); }

  int enums = 0;
  bool fails = false;

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    return new Call(AnswerOf(context->method()), fails);
  }

 private:
  class Call final : public grpc::ServerGenericBidiReactor {
   public:
    Call(grpc::ByteBuffer answer, bool fails) : answer_(std::move(answer)), fails_(fails) {
      StartRead(&request_);
    }
    void OnReadDone(bool ok) override {
      if (ok) return StartRead(&request_);
      if (fails_) return Finish({grpc::StatusCode::INVALID_ARGUMENT, std::string(kHostile)});
      StartWriteAndFinish(&answer_, {}, grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer request_, answer_;
    const bool fails_;
  };

  // "/sft.v1.JobService/GetJob"
  grpc::ByteBuffer AnswerOf(const std::string& path) const {
    std::string name = path.substr(1);
    name[name.find('/')] = '.';
    const auto* const method =
        google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
    std::unique_ptr<google::protobuf::Message> answer(
        google::protobuf::MessageFactory::generated_factory()
            ->GetPrototype(method->output_type())
            ->New());
    Filler(enums).Fill(*answer);
    const grpc::Slice slice(answer->SerializeAsString());
    return {&slice, 1};
  }

  std::unique_ptr<grpc::Server> server_;
};

Outcome Ask(HostileServer& server, const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"sftctl"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, err;
  FakeClock clock;
  const Console console{out, err, /*terminal=*/true, 80, /*out_terminal=*/true};
  const int code =
      RunApp(static_cast<int>(argv.size()), argv.data(), console, [&](const std::string&) {
        return std::make_unique<Connection>(server.Channel(), "test:1", console, clock);
      });
  return {code, out.str(), err.str()};
}

// What of a text would not be shown as it is, or would do something; "" for none.
std::string Harm(std::string text) {
  // What a progress line of its own begins and ends with.
  for (const std::string_view own : {"\r", "\x1b[K", "\x1b[2K"}) {
    for (size_t at; (at = text.find(own)) != text.npos;) text.erase(at, own.size());
  }
  const auto breaks = [](char c) { return c == '\n' || c == '\t'; };
  text.erase(std::remove_if(text.begin(), text.end(), breaks), text.end());
  if (IsPlain(text)) return "";
  std::string_view rest = text;
  for (bool valid = true; valid && !IsControl(TakeCharacter(rest, valid));) {
  }
  const size_t at = text.size() - rest.size();
  return Escaped(std::string_view(text).substr(at > 60 ? at - 60 : 0, 80), false);
}

const std::vector<std::string> kCommands = {"submit @/job.toml --dry-run",
                                            "submit @/job.toml",
                                            "status j",
                                            "list",
                                            "logs j",
                                            "cancel j",
                                            "hold j",
                                            "release j",
                                            "checkpoint j",
                                            "checkpoints j",
                                            "resume j",
                                            "wait j --timeout 1s",
                                            "metrics j",
                                            "metrics j --ranks",
                                            "compare a b",
                                            "profile j -o @/j",
                                            "events j",
                                            "events --all",
                                            "nodes",
                                            "nodes n",
                                            "nodes --history 2h n",
                                            "drain n",
                                            "nodes cordon n",
                                            "nodes resume n",
                                            "nodes rm n",
                                            "variants",
                                            "models",
                                            "models m",
                                            "models rm o/m",
                                            "webhook list",
                                            "webhook add https://h.example/a",
                                            "webhook deliveries w",
                                            "webhook test w",
                                            "webhook replay w --id d",
                                            "webhook rotate w",
                                            "webhook remove w",
                                            "top",
                                            "top --page nodes",
                                            "top --page queue",
                                            "top j --page curve",
                                            "top j --page ranks",
                                            "top j --page log",
                                            "top j --page events",
                                            "price list",
                                            "price set H100 2",
                                            "price remove p",
                                            "stats",
                                            "storage",
                                            "rm j",
                                            "rm j --dry-run",
                                            "whoami",
                                            "web --no-open",
                                            "admin project list",
                                            "admin project show p",
                                            "admin project set p --share 2",
                                            "admin quota list",
                                            "admin quota set p --datasets 1GB",
                                            "admin user list",
                                            "admin user set u --role viewer",
                                            "admin user remove u",
                                            "admin token list",
                                            "admin token create u",
                                            "admin token revoke t",
                                            "admin audit",
                                            "doctor"};

// They follow a job, which has to end.
const std::vector<std::string> kFollowing = {"wait j", "logs j --follow", "status j --watch"};

// The fields of which something is in the text, and what showed it.
void Note(const std::string& text, const std::string& command, Shown& shown) {
  for (size_t at = 0; (at = text.find('<', at)) != text.npos; ++at) {
    const size_t end = text.find('>', at);
    if (end == text.npos) return;
    if (end - at < 60) shown[text.substr(at, end - at + 1)].insert(command);
  }
}

// Runs the command against each kind of answer, and fails for what would reach a terminal.
void Check(HostileServer& server, std::vector<std::string> arguments, Shown& shown) {
  const Outcome run = Ask(server, arguments);
  const std::string what = absl::StrJoin(arguments, " ");
  EXPECT_EQ(Harm(run.out), "") << what << ", on standard output";
  EXPECT_EQ(Harm(run.err), "") << what << ", on standard error";
  Note(run.out, what, shown);
  Note(run.err, what, shown);
}

TEST(HostileTextTest, NoCommandSendsWhatAnAnswerHoldsToTheTerminal) {
  HostileServer server;
  Shown shown;
  const std::string folder = TestFolder();
  std::ofstream(folder + "/job.toml") << "[job]\n";
  constexpr int kEnums = 9;
  for (const std::string& command : kCommands) {
    for (int variant = 0; variant <= kEnums; ++variant) {
      server.enums = variant;
      server.fails = variant == kEnums;
      std::vector<std::string> arguments =
          absl::StrSplit(absl::StrReplaceAll(command, {{"@", folder}}), ' ');
      Check(server, arguments, shown);
      arguments.emplace_back("--json");
      Check(server, arguments, shown);
    }
  }
  EXPECT_GT(shown.size(), 140U) << "the answers reach no output";
  EXPECT_TRUE(shown.contains("<JobPlan.batch>"));
}

TEST(HostileTextTest, WhoFollowsAJobIsSentNothingOfItToTheTerminal) {
  HostileServer server;
  Shown shown;
  for (const v1::Job::State state : {v1::Job::SUCCEEDED, v1::Job::FAILED, v1::Job::CANCELLED}) {
    server.enums = state;
    for (const std::string& command : kFollowing) {
      Check(server, absl::StrSplit(command, ' '), shown);
    }
  }
  EXPECT_TRUE(shown.contains("<Verdict.message>"));
}

}  // namespace
}  // namespace sft::client
