#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/door/door.h"
#include "server/door/follower.h"

namespace sft::server {

// What the server can be asked: a method's rule, and how a call of it is run.
struct Method {
  // Which side sends more than one message. A followed call sends them as they come
  // (FollowedCall); a standing one is served by the transport itself.
  enum class Kind { kUnary, kServerStream, kFollow, kClientStream, kStanding };
  bool streams() const { return kind != Kind::kUnary; }

  Rule rule;
  Kind kind = Kind::kUnary;
  std::function<absl::Status(Door&, CallContext&, Exchange&)> run;
  // In place of `run`, of one that follows: admits the call.
  std::function<absl::StatusOr<std::unique_ptr<Follower>>(Door&, CallContext&, Exchange&)> follow;
};

// The answers of a method that sends several.
template <typename Answer>
class Sink {
 public:
  explicit Sink(Exchange& exchange) : exchange_(exchange) {}
  // False: the caller has gone. Waits while the caller reads slowly.
  bool Write(const Answer& answer) { return exchange_.Write(answer); }
  // Whether the caller has gone, for one that has nothing to write.
  bool Gone() const { return exchange_.Gone(); }

 private:
  Exchange& exchange_;
};

// The messages of a caller that sends several: the first one is admitted as a request is, and
// before each later one it is looked whether the caller still may.
template <typename Request>
class Source {
 public:
  Source(Door& door, CallContext& call, Exchange& exchange)
      : door_(door), call_(call), exchange_(exchange) {}
  // False: there are no more, or status() says why.
  bool Read(Request& message) {
    absl::StatusOr<bool> read = exchange_.Read(message);
    if (!read.ok()) status_ = read.status();
    if (!status_.ok() || !*read) return false;
    if (first_) {
      first_ = false;
      status_ = door_.AdmitRequest(call_, /*streams=*/true, message, message);
      return status_.ok();
    }
    return !call_.Gone();
  }
  // OK when the caller has sent all that it had to send. A connection that broke ends the reads
  // too.
  absl::Status status() {
    if (!status_.ok()) return status_;
    return call_.Gone() ? absl::CancelledError("the caller has gone") : absl::OkStatus();
  }

 private:
  Door& door_;
  CallContext& call_;
  Exchange& exchange_;
  bool first_ = true;
  absl::Status status_;
};

// The table of all methods, filled at the start by the services and then only read. A method is one
// line: its rule and its function, which takes and returns messages and knows no transport.
class Methods {
 public:
  // One request, one answer.
  template <typename Service, typename Request, typename Answer>
  void Unary(Rule rule, Service* service,
             absl::StatusOr<Answer> (Service::*function)(CallContext&, const Request&)) {
    AddUnary(std::move(rule), service, function,
             [](const Request& request) -> const Request& { return request; });
  }
  // `named` gives the part of the request that names what it is about, where that is not all of it.
  template <typename Service, typename Request, typename Answer, typename Named>
  void Unary(Rule rule, Service* service,
             absl::StatusOr<Answer> (Service::*function)(CallContext&, const Request&),
             const Named& (Request::*named)() const) {
    AddUnary(std::move(rule), service, function, std::mem_fn(named));
  }
  // One request, several answers.
  template <typename Service, typename Request, typename Answer>
  void ServerStream(Rule rule, Service* service,
                    absl::Status (Service::*function)(CallContext&, const Request&,
                                                      Sink<Answer>&)) {
    Add(std::move(rule), Method::Kind::kServerStream,
        [=](Door& door, CallContext& call, Exchange& exchange) -> absl::Status {
          Request request;
          SFT_RETURN_IF_ERROR(ReadRequest(exchange, request));
          SFT_RETURN_IF_ERROR(door.AdmitRequest(call, true, request, request));
          Sink<Answer> sink(exchange);
          return (service->*function)(call, request, sink);
        });
  }
  // One request, whose answers come over time.
  template <typename Service, typename Request>
  void Follow(Rule rule, Service* service,
              absl::StatusOr<std::unique_ptr<Follower>> (Service::*function)(CallContext&,
                                                                             const Request&)) {
    Method method{std::move(rule), Method::Kind::kFollow, nullptr, nullptr};
    method.follow = [=](Door& door, CallContext& call,
                        Exchange& exchange) -> absl::StatusOr<std::unique_ptr<Follower>> {
      Request request;
      SFT_RETURN_IF_ERROR(ReadRequest(exchange, request));
      SFT_RETURN_IF_ERROR(door.AdmitRequest(call, true, request, request));
      return (service->*function)(call, request);
    };
    Add(std::move(method));
  }
  // Several messages, one answer.
  template <typename Service, typename Request, typename Answer>
  void ClientStream(Rule rule, Service* service,
                    absl::StatusOr<Answer> (Service::*function)(CallContext&, Source<Request>&)) {
    Add(std::move(rule), Method::Kind::kClientStream,
        [=](Door& door, CallContext& call, Exchange& exchange) -> absl::Status {
          SFT_RETURN_IF_ERROR(door.AdmitCaller(call, true));
          Source<Request> source(door, call, exchange);
          SFT_ASSIGN_OR_RETURN(const Answer answer, (service->*function)(call, source));
          (void)exchange.Write(answer);
          return absl::OkStatus();
        });
  }
  // A method whose calls the transport serves by itself.
  void Standing(Rule rule) { Add(std::move(rule), Method::Kind::kStanding, nullptr); }

  // By its name, "JobService.GetJob". Null: there is no such method.
  const Method* Find(std::string_view name) const;
  bool HasService(std::string_view service) const;
  const std::map<std::string, Method, std::less<>>& all() const { return methods_; }

 private:
  template <typename Service, typename Request, typename Answer, typename Named>
  void AddUnary(Rule rule, Service* service,
                absl::StatusOr<Answer> (Service::*function)(CallContext&, const Request&),
                Named named) {
    Add(std::move(rule), Method::Kind::kUnary,
        [=](Door& door, CallContext& call, Exchange& exchange) -> absl::Status {
          SFT_RETURN_IF_ERROR(door.AdmitAnybody(call));
          Request request;
          SFT_RETURN_IF_ERROR(ReadRequest(exchange, request));
          SFT_RETURN_IF_ERROR(door.AdmitRequest(call, false, request, named(request)));
          SFT_ASSIGN_OR_RETURN(const Answer answer, (service->*function)(call, request));
          (void)exchange.Write(answer);  // who has gone needs none
          return absl::OkStatus();
        });
  }
  static absl::Status ReadRequest(Exchange& exchange, google::protobuf::Message& request);
  void Add(Rule rule, Method::Kind kind,
           std::function<absl::Status(Door&, CallContext&, Exchange&)> run);
  void Add(Method method);

  std::map<std::string, Method, std::less<>> methods_;  // by name
};

}  // namespace sft::server
