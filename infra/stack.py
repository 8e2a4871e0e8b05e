"""Brings the template up in moto's CloudFormation and prints what came of it, as JSON, for stack_test.go.

usage: stack.py template.yaml [Parameter=Value ...]
"""
import ast
import json
import logging
import sys
import time
import warnings

import boto3
import yaml
from moto import mock_aws
from samtranslator.translator.managed_policy_translator import ManagedPolicyLoader
from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

REGION = "us-east-1"
logging.disable(logging.WARNING)
warnings.filterwarnings("ignore")  # of what moto skips: it is in the result


class NoManagedPolicies(ManagedPolicyLoader):
    def __init__(self):
        pass

    def load(self):
        return {}


def transformed(path, parameters):
    with open(path) as f:
        doc = yaml_parse(f)
    for r in doc["Resources"].values():  # what sam package does: code lies in a bucket
        if r["Type"] == "AWS::Serverless::Function":
            r["Properties"]["CodeUri"] = "s3://code/empty.zip"
    return transform(doc, parameters, NoManagedPolicies())


def without_urls(template):
    """moto has no function URLs and fails on an output that names one: those outputs are left out, and told."""
    urls = {n for n, r in template["Resources"].items() if r["Type"] == "AWS::Lambda::Url"}
    left_out = [k for k, o in template["Outputs"].items() if any(u in json.dumps(o) for u in urls)]
    return dict(template, Outputs={k: o for k, o in template["Outputs"].items() if k not in left_out}), left_out


def document(policy):
    """moto keeps the document of an inline policy as Python writes it."""
    return ast.literal_eval(policy) if isinstance(policy, str) else policy


def deploy(template, parameters):
    empty_zip = b"PK\x05\x06" + b"\x00" * 18
    boto3.client("s3", REGION).create_bucket(Bucket="code")
    boto3.client("s3", REGION).put_object(Bucket="code", Key="empty.zip", Body=empty_zip)
    cfn = boto3.client("cloudformation", REGION)
    cfn.create_stack(
        StackName="lowtide",
        TemplateBody=json.dumps(template),
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM"],
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()],
    )
    for _ in range(60):
        stack = cfn.describe_stacks(StackName="lowtide")["Stacks"][0]
        if not stack["StackStatus"].endswith("IN_PROGRESS"):
            break
        time.sleep(0.5)
    listed = cfn.describe_stack_resources(StackName="lowtide")["StackResources"]
    made = [r for r in listed if r.get("ResourceType") and r.get("PhysicalResourceId")]  # the others moto has skipped
    roles = {}
    iam = boto3.client("iam", REGION)
    for r in made:
        if r["ResourceType"] == "AWS::IAM::Role":
            name = r["PhysicalResourceId"]
            roles[r["LogicalResourceId"]] = [
                document(iam.get_role_policy(RoleName=name, PolicyName=p)["PolicyDocument"])
                for p in iam.list_role_policies(RoleName=name)["PolicyNames"]
            ]
    return {
        "status": stack["StackStatus"],
        "reason": stack.get("StackStatusReason", ""),
        "outputs": {o["OutputKey"]: o["OutputValue"] for o in stack.get("Outputs", [])},
        "made": sorted({r["LogicalResourceId"] for r in made}),
        "roles": roles,
        "functions": [
            {k: f.get(k) for k in ("FunctionName", "Role", "Timeout", "Architectures")}
            for f in boto3.client("lambda", REGION).list_functions()["Functions"]
        ],
        "rules": [r["Name"] for r in boto3.client("events", REGION).list_rules()["Rules"]],
        "queues": len(boto3.client("sqs", REGION).list_queues().get("QueueUrls", [])),
        "alarms": len(boto3.client("cloudwatch", REGION).describe_alarms()["MetricAlarms"]),
    }


def main():
    parameters = dict(p.split("=", 1) for p in sys.argv[2:])
    template = transformed(sys.argv[1], parameters)
    with mock_aws():
        deployable, left_out = without_urls(template)
        result = deploy(deployable, parameters)
    result["template"], result["outputs_left_out"] = template, left_out
    json.dump(result, sys.stdout, default=str)


main()
