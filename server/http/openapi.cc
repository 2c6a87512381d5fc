#include "server/http/openapi.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <set>
#include <vector>

#include "common/base/json.h"
#include "common/base/version.h"
#include "server/http/rest_api.h"

namespace sft::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::MethodDescriptor;
using Json = nlohmann::ordered_json;

constexpr char kPackage[] = "sft.v1.";

// "Job.State" of "sft.v1.Job.State"; OpenAPI allows dots in names of schemas.
std::string NameOf(const std::string& full_name) {
  return full_name.starts_with(kPackage) ? full_name.substr(sizeof(kPackage) - 1) : full_name;
}

Json RefTo(const std::string& name) { return {{"$ref", "#/components/schemas/" + name}}; }

Json OfType(const char* type, const char* format) { return {{"type", type}, {"format", format}}; }

// Collects the schemas of messages and all that they hold.
class Schemas {
 public:
  Json Of(const Descriptor& message) {
    if (message.full_name() == "google.protobuf.Timestamp") return OfType("string", "date-time");
    if (message.full_name() == "google.protobuf.Duration") return {{"type", "string"}};
    std::string name = NameOf(message.full_name());
    if (made_.insert(name).second) {
      Json properties = Json::object();
      for (int i = 0; i < message.field_count(); ++i) {
        properties[message.field(i)->name()] = Of(*message.field(i));
      }
      all_[name] = {{"type", "object"},
                    {"properties", std::move(properties)},
                    {"additionalProperties", false}};
    }
    return RefTo(name);
  }
  Json Take() { return std::move(all_); }
  void Add(const std::string& name, Json schema) { all_[name] = std::move(schema); }

  Json Of(const FieldDescriptor& field) {
    if (field.is_map()) {
      return {{"type", "object"},
              {"additionalProperties", OfOne(*field.message_type()->map_value())}};
    }
    if (field.is_repeated()) return {{"type", "array"}, {"items", OfOne(field)}};
    return OfOne(field);
  }

 private:
  Json OfOne(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return OfType("integer", "int32");
      case FieldDescriptor::CPPTYPE_UINT32:
        return {{"type", "integer"}, {"minimum", 0}};
      case FieldDescriptor::CPPTYPE_INT64:
        return OfType("string", "int64");  // as text: JSON's numbers lose digits
      case FieldDescriptor::CPPTYPE_UINT64:
        return OfType("string", "uint64");
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT:
        return {{"oneOf",
                 {{{"type", "number"}},
                  {{"type", "string"}, {"enum", {"NaN", "Infinity", "-Infinity"}}}}}};
      case FieldDescriptor::CPPTYPE_BOOL:
        return {{"type", "boolean"}};
      case FieldDescriptor::CPPTYPE_ENUM:
        return Of(*field.enum_type());
      case FieldDescriptor::CPPTYPE_STRING:
        if (field.type() == FieldDescriptor::TYPE_BYTES) return OfType("string", "byte");
        return {{"type", "string"}};
      default:
        return Of(*field.message_type());
    }
  }
  Json Of(const EnumDescriptor& type) {
    std::string name = NameOf(type.full_name());
    if (made_.insert(name).second) {
      Json values = Json::array();
      for (int i = 0; i < type.value_count(); ++i) values.push_back(type.value(i)->name());
      all_[name] = {{"type", "string"}, {"enum", std::move(values)}};
    }
    return RefTo(name);
  }

  std::set<std::string> made_;
  Json all_ = Json::object();
};

Json Content(const char* type, Json schema) { return {{type, {{"schema", std::move(schema)}}}}; }

Json Errors() {
  return {{"description", "The call was refused or failed."},
          {"content", Content("application/json", RefTo("Error"))}};
}

Json ErrorSchema() {
  const Json text = {{"type", "string"}};
  return {{"type", "object"},
          {"required", {"code", "message", "details"}},
          {"properties",
           {{"code", text},
            {"message", text},
            {"details",
             {{"type", "array"},
              {"items",
               {{"type", "object"}, {"properties", {{"field", text}, {"description", text}}}}}}}}}};
}

Json PathOf(const Method& method, const MethodDescriptor& described, Schemas& schemas) {
  const bool streams = method.streams();
  Json answer = schemas.Of(*described.output_type());
  Json good = {{"description",
                streams ? "Events, one message in the data of each; the last one is named \"end\" "
                          "or, with an Error, \"error\"."
                        : "The answer."},
               {"content", Content(streams ? "text/event-stream" : "application/json",
                                   streams ? Json{{"type", "string"}} : std::move(answer))}};
  if (streams) good["x-message"] = NameOf(described.output_type()->full_name());
  Json post = {{"operationId", method.rule.method},
               {"tags", {described.service()->name()}},
               {"requestBody",
                {{"required", true},
                 {"content", Content("application/json", schemas.Of(*described.input_type()))}}},
               {"responses", {{"200", std::move(good)}, {"default", Errors()}}}};
  return {{"post", std::move(post)}};
}

// The first message is the query, all that follows is the body.
Json UploadPath(const Method& method, const MethodDescriptor& described, Schemas& schemas) {
  Json parameters = Json::array();
  const Descriptor& first = *described.input_type();
  for (int i = 0; i < first.field_count(); ++i) {
    const FieldDescriptor& field = *first.field(i);
    if (field.type() == FieldDescriptor::TYPE_BYTES) continue;
    parameters.push_back({{"name", field.name()}, {"in", "query"}, {"schema", schemas.Of(field)}});
  }
  Json good = {{"description", "The answer."},
               {"content", Content("application/json", schemas.Of(*described.output_type()))}};
  Json post = {{"operationId", method.rule.method},
               {"tags", {described.service()->name()}},
               {"parameters", std::move(parameters)},
               {"requestBody",
                {{"required", true},
                 {"content", Content("application/octet-stream",
                                     {{"type", "string"}, {"format", "binary"}})}}},
               {"responses", {{"200", std::move(good)}, {"default", Errors()}}}};
  return {{"post", std::move(post)}};
}

Json FeedPath() {
  Json parameters = Json::array();
  const auto add = [&](const char* name, const char* what, bool several) {
    Json schema = {{"type", "string"}};
    if (several) schema = {{"type", "array"}, {"items", schema}};
    parameters.push_back(
        {{"name", name}, {"in", "query"}, {"description", what}, {"schema", schema}});
  };
  add("job", "Follow this job.", false);
  add("metrics", "And its points from this index on.", false);
  add("log", "And a rank's log from a byte on, as RANK:OFFSET.", true);
  add("jobs", "1: tell of changes in the list of jobs.", false);
  add("nodes", "1: tell of changes of nodes.", false);
  add("cursor", "The id of the last message, to go on from there.", false);
  return {{"get",
           {{"operationId", "feed"},
            {"parameters", std::move(parameters)},
            {"responses",
             {{"200",
               {{"description", "Events."},
                {"content", Content("text/event-stream", {{"type", "string"}})}}},
              {"default", Errors()}}}}}};
}

}  // namespace

std::string OpenApiOf(const Methods& methods) {
  Schemas schemas;
  schemas.Add("Error", ErrorSchema());
  Json paths = Json::object();
  for (const auto& [name, method] : methods.all()) {
    const MethodDescriptor* const described =
        DescriptorPool::generated_pool()->FindMethodByName(kPackage + name);
    const bool uploads = RestApi::ServesUpload(method);
    if (described == nullptr || !(uploads || RestApi::Serves(method))) continue;
    std::string path = std::string(RestApi::kRoot) + name;
    path[path.find('.')] = '/';
    paths[path] =
        uploads ? UploadPath(method, *described, schemas) : PathOf(method, *described, schemas);
  }
  paths[std::string(RestApi::kRoot) + "feed"] = FeedPath();
  return DumpJson(
      Json{{"openapi", "3.1.0"},
           {"info", {{"title", "sft-server"}, {"version", kVersion}}},
           {"paths", std::move(paths)},
           {"components",
            {{"schemas", schemas.Take()},
             {"securitySchemes", {{"token", {{"type", "http"}, {"scheme", "bearer"}}}}}}},
           {"security", {{{"token", Json::array()}}}}});
}

}  // namespace sft::server
